#include "cpp/quant/source_format.h"

#include <array>
#include <cstring>

#include "cpp/base/check.h"
#include "cpp/base/float16.h"

namespace llmsrv {
namespace {

struct FormatInfo {
  SourceFormat format;
  std::string_view name;
  int block_values;
  std::size_t block_bytes;
};

// In the order of the enum, so that a format is its own index.
constexpr std::array<FormatInfo, 11> kFormats = {{
    {SourceFormat::kF32, "f32", 1, 4},
    {SourceFormat::kF16, "f16", 1, 2},
    {SourceFormat::kBf16, "bf16", 1, 2},
    {SourceFormat::kQ4_0, "q4_0", 32, 18},
    {SourceFormat::kQ4_1, "q4_1", 32, 20},
    {SourceFormat::kQ5_0, "q5_0", 32, 22},
    {SourceFormat::kQ5_1, "q5_1", 32, 24},
    {SourceFormat::kQ8_0, "q8_0", 32, 34},
    {SourceFormat::kQ4_K, "q4_k", 256, 144},
    {SourceFormat::kQ5_K, "q5_k", 256, 176},
    {SourceFormat::kQ6_K, "q6_k", 256, 210},
}};

const FormatInfo& info(SourceFormat format) { return kFormats[static_cast<std::size_t>(format)]; }

// The bytes of a file, read without any assumption on alignment. Files are little endian, and so are we.
using Bytes = const std::uint8_t*;

template <typename T>
T load(Bytes at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

float load_f16(Bytes at) { return f16_to_float(load<std::uint16_t>(at)); }

// Blocks of 32 values keep value j in the low and value j + 16 in the high half of byte j.
void unpack_q4_0(Bytes in, float* out) {
  const float d = load_f16(in);
  for (int j = 0; j < 16; ++j) {
    out[j] = static_cast<float>((in[2 + j] & 15) - 8) * d;
    out[j + 16] = static_cast<float>((in[2 + j] >> 4) - 8) * d;
  }
}

void unpack_q4_1(Bytes in, float* out) {
  const float d = load_f16(in);
  const float m = load_f16(in + 2);
  for (int j = 0; j < 16; ++j) {
    out[j] = static_cast<float>(in[4 + j] & 15) * d + m;
    out[j + 16] = static_cast<float>(in[4 + j] >> 4) * d + m;
  }
}

// The fifth bit of value j is bit j of a 32-bit word ahead of the nibbles.
int five_bits(int nibble, std::uint32_t high_bits, int j) {
  return nibble | static_cast<int>((high_bits >> j & 1) << 4);
}

void unpack_q5_0(Bytes in, float* out) {
  const float d = load_f16(in);
  const auto high = load<std::uint32_t>(in + 2);
  for (int j = 0; j < 16; ++j) {
    out[j] = static_cast<float>(five_bits(in[6 + j] & 15, high, j) - 16) * d;
    out[j + 16] = static_cast<float>(five_bits(in[6 + j] >> 4, high, j + 16) - 16) * d;
  }
}

void unpack_q5_1(Bytes in, float* out) {
  const float d = load_f16(in);
  const float m = load_f16(in + 2);
  const auto high = load<std::uint32_t>(in + 4);
  for (int j = 0; j < 16; ++j) {
    out[j] = static_cast<float>(five_bits(in[8 + j] & 15, high, j)) * d + m;
    out[j + 16] = static_cast<float>(five_bits(in[8 + j] >> 4, high, j + 16)) * d + m;
  }
}

void unpack_q8_0(Bytes in, float* out) {
  const float d = load_f16(in);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(static_cast<std::int8_t>(in[2 + j])) * d;
}

// Q4_K and Q5_K: eight groups of 32 values, each with a 6-bit scale and a 6-bit minimum. The first four of both stand
// in the low bits of bytes 0-3 and 4-7; the others are split between bytes 8-11 (low four bits) and the top bits of
// 0-7.
struct GroupScale {
  int scale;
  int min;
};

GroupScale k_group_scale(Bytes packed, int group) {
  if (group < 4) return {packed[group] & 63, packed[group + 4] & 63};
  return {(packed[group + 4] & 15) | (packed[group - 4] >> 6 << 4),
          (packed[group + 4] >> 4) | (packed[group] >> 6 << 4)};
}

void unpack_q4_k(Bytes in, float* out) {
  const float d = load_f16(in);
  const float d_min = load_f16(in + 2);
  for (int group = 0; group < 8; ++group) {
    const GroupScale packed = k_group_scale(in + 4, group);
    const float scale = d * static_cast<float>(packed.scale);
    const float min = d_min * static_cast<float>(packed.min);
    const Bytes nibbles = in + 16 + group / 2 * 32;  // groups 2i and 2i + 1 are the low and high halves of 32 bytes
    const int shift = group % 2 * 4;
    for (int j = 0; j < 32; ++j) out[group * 32 + j] = scale * static_cast<float>(nibbles[j] >> shift & 15) - min;
  }
}

void unpack_q5_k(Bytes in, float* out) {
  const float d = load_f16(in);
  const float d_min = load_f16(in + 2);
  const Bytes high = in + 16;  // bit g of byte j is the fifth bit of value j of group g
  for (int group = 0; group < 8; ++group) {
    const GroupScale packed = k_group_scale(in + 4, group);
    const float scale = d * static_cast<float>(packed.scale);
    const float min = d_min * static_cast<float>(packed.min);
    const Bytes nibbles = in + 48 + group / 2 * 32;
    const int shift = group % 2 * 4;
    for (int j = 0; j < 32; ++j) {
      const int quant = (nibbles[j] >> shift & 15) | (high[j] >> group & 1) << 4;
      out[group * 32 + j] = scale * static_cast<float>(quant) - min;
    }
  }
}

// Q6_K: two halves of 128 values; value 32 q + j of a half (q in 0..3) has its low four bits in nibble q / 2 of byte
// 32 (q % 2) + j and its high two bits at bit 2 q of high byte j. One int8 scale per 16 values.
void unpack_q6_k(Bytes in, float* out) {
  const float d = load_f16(in + 208);
  for (int half = 0; half < 2; ++half) {
    const Bytes low = in + half * 64;
    const Bytes high = in + 128 + half * 32;
    const Bytes scales = in + 192 + half * 8;
    for (int i = 0; i < 128; ++i) {
      const int quarter = i / 32;
      const int j = i % 32;
      const int nibble = low[quarter % 2 * 32 + j] >> (quarter / 2 * 4) & 15;
      const int quant = (nibble | (high[j] >> (2 * quarter) & 3) << 4) - 32;
      const float scale = d * static_cast<float>(static_cast<std::int8_t>(scales[i / 16]));
      out[half * 128 + i] = scale * static_cast<float>(quant);
    }
  }
}

void unpack_block(SourceFormat format, Bytes in, float* out) {
  switch (format) {
    case SourceFormat::kF32:
      *out = load<float>(in);
      return;
    case SourceFormat::kF16:
      *out = load_f16(in);
      return;
    case SourceFormat::kBf16:
      *out = bf16_to_float(load<std::uint16_t>(in));
      return;
    case SourceFormat::kQ4_0:
      return unpack_q4_0(in, out);
    case SourceFormat::kQ4_1:
      return unpack_q4_1(in, out);
    case SourceFormat::kQ5_0:
      return unpack_q5_0(in, out);
    case SourceFormat::kQ5_1:
      return unpack_q5_1(in, out);
    case SourceFormat::kQ8_0:
      return unpack_q8_0(in, out);
    case SourceFormat::kQ4_K:
      return unpack_q4_k(in, out);
    case SourceFormat::kQ5_K:
      return unpack_q5_k(in, out);
    case SourceFormat::kQ6_K:
      return unpack_q6_k(in, out);
  }
}

}  // namespace

std::optional<SourceFormat> source_format_from_name(std::string_view name) {
  for (const FormatInfo& candidate : kFormats) {
    if (candidate.name == name) return candidate.format;
  }
  return std::nullopt;
}

int source_block_values(SourceFormat format) { return info(format).block_values; }
std::size_t source_block_bytes(SourceFormat format) { return info(format).block_bytes; }

std::size_t source_row_bytes(SourceFormat format, std::int64_t cols) {
  LLMSRV_CHECK(cols >= 0 && cols % source_block_values(format) == 0);
  return static_cast<std::size_t>(cols / source_block_values(format)) * source_block_bytes(format);
}

void unpack_row(SourceFormat format, const std::byte* source, std::int64_t cols, float* out) {
  const FormatInfo& block = info(format);
  const auto* in = reinterpret_cast<Bytes>(source);
  for (std::int64_t done = 0; done < cols; done += block.block_values, in += block.block_bytes) {
    unpack_block(format, in, out + done);
  }
}

}  // namespace llmsrv
