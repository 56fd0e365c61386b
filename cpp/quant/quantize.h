// Float weights to integers of 8 or 4 bits while loading, in groups of scale_cols(format) = 32, 64 or 128 columns.
//
//   kS8, kS8G64, kS8G128 ("int8"):
//     d = f16(max |w| / 127)       q = clamp(round(w / d), -127, 127)      stands for d q
//   kU4, kU4G64, kU4G128 ("int4"):
//     m = f16(min w)
//     d = f16((max w - m) / 15)    q = clamp(round((w - m) / d), 0, 15)    stands for d q + m
//
// All in float; f16() and round() go to the nearest, ties to even. Where d is 0, so is every q. A group with a value
// that is not finite, or whose d or m is beyond f16, gets a d of NaN: it stands for NaN, and a request that meets it
// fails.
#pragma once

#include <span>

#include "cpp/quant/quant_block.h"
#include "cpp/quant/weight_format.h"

namespace llmsrv {

constexpr int kMaxQuantizedGroupBlocks = 4;

bool can_quantize_to(WeightFormat format);

// The scale_cols(format) values at `weights` become that many / 32 blocks of equal scale and minimum. Fills what
// source_of(format) uses of them. REQUIRES: can_quantize_to(format)
void quantize_group(WeightFormat format, const float* weights, std::span<QuantBlock> blocks);

}  // namespace llmsrv
