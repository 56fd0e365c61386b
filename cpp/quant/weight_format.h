// The formats in which weight matrices are held in memory; packed_layout.h and packed_matrix.h have their bytes.
#pragma once

#include <optional>
#include <string_view>

#include "cpp/quant/packed_layout.h"
#include "cpp/quant/source_format.h"

namespace llmsrv {

// Plain types, and one quantized format per block type of files: its integers and scales untouched, only permuted.
// U: unsigned integers with a scale and a minimum; Zero: with a scale and a fixed zero point; S: signed, with a scale;
// K: in superblocks of 256 whose scales are quantized too; G64, G128: one scale for so many columns, for floats that
// are quantized while loading. kS8G64 and kS8G128 have the bytes of kS8: their scales repeat.
enum class WeightFormat {
  kF32,
  kBf16,
  kU4,
  kU4Zero,
  kU5,
  kU5Zero,
  kS8,
  kU4K,
  kU5K,
  kU6K,
  kU4G64,
  kU4G128,
  kS8G64,
  kS8G128
};

// The source format whose blocks it is made of. It holds any of them exactly, if a scale is not shared between blocks.
SourceFormat source_of(WeightFormat format);
// Columns that share a scale: a block of source_of(format), or several.
int scale_cols(WeightFormat format);
// For people: the name of source_of(format), so that kU4 is "q4_1", or for example "int4-g64".
std::string_view weight_format_name(WeightFormat format);
std::optional<WeightFormat> weight_format_from_name(std::string_view name);

// The format that holds a source format as it is: block types keep their integers, floats of all sizes become bf16.
WeightFormat native_format(SourceFormat source);

bool is_quantized(WeightFormat format);

// Of a quantized format. REQUIRES: is_quantized(format)
const packed::Superblock& superblock_of(WeightFormat format);

}  // namespace llmsrv
