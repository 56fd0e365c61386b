// The formats in which weight matrices are held in memory; packed_layout.h and packed_matrix.h have their bytes.
#pragma once

#include <optional>
#include <string_view>

#include "cpp/quant/packed_layout.h"
#include "cpp/quant/source_format.h"

namespace llmsrv {

// Plain types, and one quantized format per block type of files: its integers and scales untouched, only permuted.
// U: unsigned integers with a scale and a minimum; Zero: with a scale and a fixed zero point; S: signed, with a scale;
// K: in superblocks of 256 whose scales are quantized too.
enum class WeightFormat { kF32, kBf16, kU4, kU4Zero, kU5, kU5Zero, kS8, kU4K, kU5K, kU6K };

// The source format whose values it holds exactly, and whose name it has for people: kU4 is "q4_1".
SourceFormat source_of(WeightFormat format);
std::string_view weight_format_name(WeightFormat format);
std::optional<WeightFormat> weight_format_from_name(std::string_view name);

// The format that holds a source format as it is: block types keep their integers, floats of all sizes become bf16.
WeightFormat native_format(SourceFormat source);

bool is_quantized(WeightFormat format);

// Of a quantized format. REQUIRES: is_quantized(format)
const packed::Superblock& superblock_of(WeightFormat format);

}  // namespace llmsrv
