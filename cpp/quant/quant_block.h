// One block of a quantized row as plain integers: what lies between a file's bytes, a packed lane and floats.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpp/quant/source_format.h"

namespace llmsrv {

// Q4_0 to Q8_0 use 32 quants and no sub-scales; Q4_K, Q5_K: 256 quants, 8 sub-scales, 8 sub-mins; Q6_K: 256 quants,
// 16 sub-scales. What a format does not have is left as it is.
struct QuantBlock {
  std::uint8_t quants[256];     // in the order of the columns, unsigned: 4 to 6 bits as stored, Q8_0 + 128
  std::uint8_t sub_scales[16];  // Q6_K: the bits of int8
  std::uint8_t sub_mins[8];
  std::uint16_t scale;  // the bits of f16: "d"
  std::uint16_t min;    // the bits of f16: "m" or "dmin"
};

// These REQUIRE a block format.
// `source` holds source_block_bytes(format) bytes, at any address.
void read_block(SourceFormat format, const std::byte* source, QuantBlock& block);
// The floats that the block stands for, down to the order of operations: source_block_values(format) of them.
void block_values(SourceFormat format, const QuantBlock& block, float* out);

}  // namespace llmsrv
