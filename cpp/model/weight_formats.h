// Which format each weight matrix has in memory. Known before any memory is taken, so that the memory plan is exact.
#pragma once

#include <map>
#include <string>

#include "cpp/model/spec.h"
#include "cpp/quant/weight_format.h"

namespace llmsrv {

// kAuto: what the file holds, block types as they are and floats of any size as bf16. kBf16, kF32: all as one plain
// type. kInt8, kInt4: as kAuto, but floats are quantized while loading (quantize.h) where rows are whole groups of 32;
// the tables at both ends get 8 bits in any case, since 4 would cost most there.
enum class WeightsDtype { kAuto, kBf16, kF32, kInt8, kInt4 };

// Of every matrix of a model, by our names. Vectors are always float.
using WeightFormats = std::map<std::string, WeightFormat>;

// `sources`: the formats of the file, by our names; a matrix that is not named there is taken for f32.
// Throws std::invalid_argument for a name that the model does not have, and for a matrix whose rows are no whole
// blocks.
WeightFormats choose_weight_formats(const ModelSpec& spec, const std::map<std::string, SourceFormat>& sources,
                                    WeightsDtype dtype);

}  // namespace llmsrv
