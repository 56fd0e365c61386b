#include "cpp/quant/quant_block.h"

#include <cstring>

#include "cpp/base/check.h"
#include "cpp/base/float16.h"

namespace llmsrv {
namespace {

// The bytes of a file, read without any assumption on alignment. Files are little endian, and so are we.
using Bytes = const std::uint8_t*;

template <typename T>
T load(Bytes at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// Blocks of 32 values keep value j in the low and value j + 16 in the high half of byte j.
void read_nibbles_32(Bytes in, QuantBlock& block) {
  for (int j = 0; j < 16; ++j) {
    block.quants[j] = in[j] & 15;
    block.quants[j + 16] = in[j] >> 4;
  }
}

// The fifth bit of value j is bit j of a 32-bit word.
void add_fifth_bits(std::uint32_t high, QuantBlock& block) {
  for (int j = 0; j < 32; ++j) block.quants[j] |= static_cast<std::uint8_t>((high >> j & 1) << 4);
}

void read_q8_0(Bytes in, QuantBlock& block) {
  for (int j = 0; j < 32; ++j) block.quants[j] = in[2 + j] ^ 0x80;  // int8 + 128
}

// Q4_K and Q5_K: groups 2i and 2i + 1 are the low and high halves of 32 bytes.
void read_k_nibbles(Bytes in, QuantBlock& block) {
  for (int pair = 0; pair < 4; ++pair) {
    for (int j = 0; j < 32; ++j) {
      block.quants[pair * 64 + j] = in[pair * 32 + j] & 15;
      block.quants[pair * 64 + 32 + j] = in[pair * 32 + j] >> 4;
    }
  }
}

// Eight groups of 32 values, each with a 6-bit scale and a 6-bit minimum. The first four of both stand in the low bits
// of bytes 0-3 and 4-7; the others are split between bytes 8-11 (low four bits) and the top bits of 0-7.
void read_k_scales(Bytes packed, QuantBlock& block) {
  for (int group = 0; group < 4; ++group) {
    block.sub_scales[group] = packed[group] & 63;
    block.sub_mins[group] = packed[group + 4] & 63;
    block.sub_scales[group + 4] = static_cast<std::uint8_t>((packed[group + 8] & 15) | (packed[group] >> 6 << 4));
    block.sub_mins[group + 4] = static_cast<std::uint8_t>((packed[group + 8] >> 4) | (packed[group + 4] >> 6 << 4));
  }
}

void read_q5_k_high_bits(Bytes high, QuantBlock& block) {
  for (int group = 0; group < 8; ++group) {  // bit g of byte j is the fifth bit of value j of group g
    for (int j = 0; j < 32; ++j) block.quants[group * 32 + j] |= static_cast<std::uint8_t>((high[j] >> group & 1) << 4);
  }
}

// Q6_K: two halves of 128 values; value 32 q + j of a half (q in 0..3) has its low four bits in nibble q / 2 of byte
// 32 (q % 2) + j and its high two bits at bit 2 q of high byte j. One int8 scale per 16 values.
void read_q6_k(Bytes in, QuantBlock& block) {
  for (int half = 0; half < 2; ++half) {
    const Bytes low = in + half * 64;
    const Bytes high = in + 128 + half * 32;
    for (int i = 0; i < 128; ++i) {
      const int quarter = i / 32;
      const int j = i % 32;
      const int nibble = low[quarter % 2 * 32 + j] >> (quarter / 2 * 4) & 15;
      block.quants[half * 128 + i] = static_cast<std::uint8_t>(nibble | (high[j] >> (2 * quarter) & 3) << 4);
    }
  }
  std::memcpy(block.sub_scales, in + 192, sizeof(block.sub_scales));
}

// scale * (q - zero)
void values_around_zero(const QuantBlock& block, int zero, float* out) {
  const float d = f16_to_float(block.scale);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(block.quants[j] - zero) * d;
}

// scale * q + min
void values_above_min(const QuantBlock& block, float* out) {
  const float d = f16_to_float(block.scale);
  const float m = f16_to_float(block.min);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(block.quants[j]) * d + m;
}

void values_of_k_groups(const QuantBlock& block, float* out) {
  const float d = f16_to_float(block.scale);
  const float d_min = f16_to_float(block.min);
  for (int group = 0; group < 8; ++group) {
    const float scale = d * static_cast<float>(block.sub_scales[group]);
    const float min = d_min * static_cast<float>(block.sub_mins[group]);
    for (int j = group * 32; j < group * 32 + 32; ++j) out[j] = scale * static_cast<float>(block.quants[j]) - min;
  }
}

void values_of_q6_k(const QuantBlock& block, float* out) {
  const float d = f16_to_float(block.scale);
  for (int sub = 0; sub < 16; ++sub) {
    const float scale = d * static_cast<float>(static_cast<std::int8_t>(block.sub_scales[sub]));
    for (int j = sub * 16; j < sub * 16 + 16; ++j) out[j] = scale * static_cast<float>(block.quants[j] - 32);
  }
}

[[noreturn]] void refuse_plain_type() { throw InternalError("a plain type has no blocks"); }

}  // namespace

void read_block(SourceFormat format, const std::byte* source, QuantBlock& block) {
  const auto* in = reinterpret_cast<Bytes>(source);
  block.scale = load<std::uint16_t>(format == SourceFormat::kQ6_K ? in + 208 : in);
  switch (format) {
    case SourceFormat::kQ4_0:
      return read_nibbles_32(in + 2, block);
    case SourceFormat::kQ4_1:
      block.min = load<std::uint16_t>(in + 2);
      return read_nibbles_32(in + 4, block);
    case SourceFormat::kQ5_0:
      read_nibbles_32(in + 6, block);
      return add_fifth_bits(load<std::uint32_t>(in + 2), block);
    case SourceFormat::kQ5_1:
      block.min = load<std::uint16_t>(in + 2);
      read_nibbles_32(in + 8, block);
      return add_fifth_bits(load<std::uint32_t>(in + 4), block);
    case SourceFormat::kQ8_0:
      return read_q8_0(in, block);
    case SourceFormat::kQ4_K:
      block.min = load<std::uint16_t>(in + 2);
      read_k_scales(in + 4, block);
      return read_k_nibbles(in + 16, block);
    case SourceFormat::kQ5_K:
      block.min = load<std::uint16_t>(in + 2);
      read_k_scales(in + 4, block);
      read_k_nibbles(in + 48, block);
      return read_q5_k_high_bits(in + 16, block);
    case SourceFormat::kQ6_K:
      return read_q6_k(in, block);
    case SourceFormat::kF32:
    case SourceFormat::kF16:
    case SourceFormat::kBf16:
      refuse_plain_type();
  }
}

void block_values(SourceFormat format, const QuantBlock& block, float* out) {
  switch (format) {
    case SourceFormat::kQ4_0:
      return values_around_zero(block, 8, out);
    case SourceFormat::kQ5_0:
      return values_around_zero(block, 16, out);
    case SourceFormat::kQ8_0:
      return values_around_zero(block, 128, out);
    case SourceFormat::kQ4_1:
    case SourceFormat::kQ5_1:
      return values_above_min(block, out);
    case SourceFormat::kQ4_K:
    case SourceFormat::kQ5_K:
      return values_of_k_groups(block, out);
    case SourceFormat::kQ6_K:
      return values_of_q6_k(block, out);
    case SourceFormat::kF32:
    case SourceFormat::kF16:
    case SourceFormat::kBf16:
      refuse_plain_type();
  }
}

}  // namespace llmsrv
