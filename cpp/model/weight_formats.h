// Which format each weight matrix has in memory. Known before any memory is taken, so that the memory plan is exact.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "cpp/model/spec.h"
#include "cpp/quant/weight_format.h"

namespace llmsrv {

// kAuto: what the file holds, block types as they are and floats of any size as bf16. kBf16, kF32: all as one plain
// type. kInt8, kInt4: as kAuto, but floats are quantized while loading (quantize.h), in groups of group_cols columns or
// of the next smaller size that rows are whole groups of. With kInt4 the tables at both ends get 8 bits, since 4 would
// cost most there, in groups of 32.
struct WeightsDtype {
  enum class Kind { kAuto, kBf16, kF32, kInt8, kInt4 };
  Kind kind = Kind::kAuto;
  int group_cols = 32;  // of kInt8 and kInt4: 32, 64 or 128
};

// "auto", "bfloat16", "float32", "int8", "int4"; the last two also as "int4-g64" and "int4-g128". Empty for another
// name.
std::optional<WeightsDtype> weights_dtype_named(std::string_view name);

// Of every matrix of a model, by our names. Vectors are always float.
using WeightFormats = std::map<std::string, WeightFormat>;

// `sources`: the formats of the file, by our names; a matrix that is not named there is taken for f32.
// Throws std::invalid_argument for a name that the model does not have, and for a matrix whose rows are no whole
// blocks.
WeightFormats choose_weight_formats(const ModelSpec& spec, const std::map<std::string, SourceFormat>& sources,
                                    const WeightsDtype& dtype);

}  // namespace llmsrv
