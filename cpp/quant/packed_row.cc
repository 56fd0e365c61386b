#include "cpp/quant/packed_row.h"

#include <cstdint>
#include <cstring>

#include "cpp/base/check.h"
#include "cpp/quant/source_format.h"

namespace llmsrv {
namespace {

using packed::kLineBytes;
using packed::kPanelRows;
using packed::Superblock;

using Bytes = const std::uint8_t*;

constexpr std::uint32_t kLowNibbles = 0x0f0f0f0f;

// Four bytes from any address. Files are little endian, and so are we.
std::uint32_t word(Bytes from, int index) {
  std::uint32_t value;
  std::memcpy(&value, from + 4 * index, sizeof(value));
  return value;
}

void put_half(std::uint8_t* to, Bytes from) { std::memcpy(to, from, 2); }

// `line`: the lane's four bytes of a group's first line.
void put_line(std::uint8_t* line, int index, std::uint32_t value) {
  std::memcpy(line + index * kLineBytes, &value, sizeof(value));
}

// 16 bytes that have columns j and j + 16 in byte j: as the lines have them.
void put_nibbles(std::uint8_t* line, Bytes from) {
  for (int j = 0; j < 4; ++j) put_line(line, j, word(from, j));
}

// 32 bytes that have column j in a half of byte j, the low or the high one.
void put_half_bytes(std::uint8_t* line, Bytes from, int shift) {
  for (int j = 0; j < 4; ++j) {
    const std::uint32_t low = word(from, j) >> shift & kLowNibbles;
    put_line(line, j, low | (word(from, j + 4) >> shift & kLowNibbles) << 4);
  }
}

// Bits 0..3 are those of columns 4 v .. 4 v + 3 in the mask of vector v, of which a lane has half a byte.
void put_mask(std::uint8_t* masks, int vector, int lane, std::uint32_t bits) {
  const int shift = lane % 2 * 4;
  std::uint8_t& byte = masks[vector * 8 + lane / 2];
  byte = static_cast<std::uint8_t>((byte & ~(15 << shift)) | static_cast<int>(bits & 15) << shift);
}

// Bit j is the fifth bit of column j.
void put_masks(std::uint8_t* masks, int lane, std::uint32_t fifth_bits) {
  for (int v = 0; v < 8; ++v) put_mask(masks, v, lane, fifth_bits >> 4 * v);
}

// Bit `bit` of byte j is the fifth bit of column j.
void put_masks_of_bytes(std::uint8_t* masks, int lane, Bytes from, int bit) {
  for (int v = 0; v < 8; ++v) {
    // The product has the four bits side by side from bit 24 on.
    put_mask(masks, v, lane, (word(from, v) >> bit & 0x01010101u) * 0x01020408u >> 24);
  }
}

// Bits `shift` and the next of byte j are bits 4 and 5 of column j.
void put_planes(std::uint8_t* line, Bytes from, int shift) {
  for (int i = 0; i < 2; ++i) {
    std::uint32_t plane = 0;
    for (int w = 0; w < 4; ++w) plane |= (word(from, 4 * i + w) >> shift & 0x03030303u) << 2 * w;
    put_line(line, i, plane);
  }
}

// Four bytes, each to the lane's place in the next row of sub-scales or sub-mins.
void put_sub_scales(std::uint8_t* first, std::uint32_t values) {
  for (int i = 0; i < 4; ++i) first[i * kPanelRows] = static_cast<std::uint8_t>(values >> 8 * i);
}

// Eight 6-bit scales and eight 6-bit minima in 12 bytes (quant_block.cc).
void put_k_scales(std::uint8_t* scales, std::uint8_t* mins, Bytes from) {
  const std::uint32_t low = word(from, 0), high = word(from, 1), rest = word(from, 2);
  constexpr std::uint32_t kSixBits = 0x3f3f3f3f, kTwoBits = 0x03030303;
  put_sub_scales(scales, low & kSixBits);
  put_sub_scales(scales + 4 * kPanelRows, (rest & kLowNibbles) | (low >> 6 & kTwoBits) << 4);
  put_sub_scales(mins, high & kSixBits);
  put_sub_scales(mins + 4 * kPanelRows, (rest >> 4 & kLowNibbles) | (high >> 6 & kTwoBits) << 4);
}

// A block of 32 columns, which is group `group` of the superblock.
template <SourceFormat kSource, Superblock kLayout>
void put_group(Bytes in, std::uint8_t* superblock, int group, int lane) {
  std::uint8_t* line = superblock + group * kLayout.low_group_bytes + 4 * lane;
  const int half = 2 * (group * kPanelRows + lane);
  constexpr bool kHasMin = kLayout.d > kLayout.mins;
  put_half(superblock + kLayout.scales + half, in);
  if constexpr (kHasMin) put_half(superblock + kLayout.mins + half, in + 2);
  Bytes values = in + (kHasMin ? 4 : 2);
  if constexpr (kLayout.high_group_bytes > 0) {
    put_masks(superblock + kLayout.high + group * kLayout.high_group_bytes, lane, word(values, 0));
    values += 4;
  }
  if constexpr (kSource == SourceFormat::kQ8_0) {
    for (int j = 0; j < 8; ++j) put_line(line, j, word(values, j) ^ 0x80808080u);
  } else {
    put_nibbles(line, values);
  }
}

// Q4_K or Q5_K: groups 2 i and 2 i + 1 are the low and the high halves of 32 bytes.
template <SourceFormat kSource, Superblock kLayout>
void put_k_superblock(Bytes in, std::uint8_t* superblock, int lane) {
  constexpr bool kIsQ5 = kSource == SourceFormat::kQ5_K;
  put_half(superblock + kLayout.d + 2 * lane, in);
  put_half(superblock + kLayout.d_min + 2 * lane, in + 2);
  put_k_scales(superblock + kLayout.scales + lane, superblock + kLayout.mins + lane, in + 4);
  Bytes nibbles = in + (kIsQ5 ? 48 : 16);
  for (int group = 0; group < 8; ++group) {
    put_half_bytes(superblock + group * kLayout.low_group_bytes + 4 * lane, nibbles + group / 2 * 32, group % 2 * 4);
    if constexpr (kIsQ5) {
      put_masks_of_bytes(superblock + kLayout.high + group * kLayout.high_group_bytes, lane, in + 16, group);
    }
  }
}

// Q6_K: group q of a half of 128 columns has its low bits in half q / 2 of 32 bytes, its high ones at bit 2 q of
// others.
void put_q6_k_superblock(Bytes in, std::uint8_t* superblock, int lane) {
  constexpr Superblock kLayout = packed::kU6K;
  put_half(superblock + kLayout.d + 2 * lane, in + 208);
  for (int i = 0; i < 4; ++i) {
    put_sub_scales(superblock + kLayout.scales + 4 * i * kPanelRows + lane, word(in + 192, i));
  }
  for (int group = 0; group < 8; ++group) {
    const int half = group / 4, q = group % 4;
    put_half_bytes(superblock + group * kLayout.low_group_bytes + 4 * lane, in + half * 64 + q % 2 * 32, q / 2 * 4);
    put_planes(superblock + kLayout.high + group * kLayout.high_group_bytes + 4 * lane, in + 128 + half * 32, 2 * q);
  }
}

template <SourceFormat kSource, Superblock kLayout>
void put_row(Bytes in, int blocks, std::uint8_t* panel, int lane) {
  const std::size_t block_bytes = source_block_bytes(kSource);
  for (int block = 0; block < blocks; ++block, in += block_bytes) {
    if constexpr (kSource == SourceFormat::kQ6_K) {
      put_q6_k_superblock(in, panel + static_cast<std::ptrdiff_t>(block) * kLayout.bytes, lane);
    } else if constexpr (kSource == SourceFormat::kQ4_K || kSource == SourceFormat::kQ5_K) {
      put_k_superblock<kSource, kLayout>(in, panel + static_cast<std::ptrdiff_t>(block) * kLayout.bytes, lane);
    } else {
      std::uint8_t* superblock = panel + static_cast<std::ptrdiff_t>(block / kLayout.groups) * kLayout.bytes;
      put_group<kSource, kLayout>(in, superblock, block % kLayout.groups, lane);
    }
  }
}

}  // namespace

void store_source_row(WeightFormat format, const std::byte* source, int blocks, std::byte* panel, int lane) {
  const auto* in = reinterpret_cast<Bytes>(source);
  auto* to = reinterpret_cast<std::uint8_t*>(panel);
  switch (format) {
    case WeightFormat::kU4:
      return put_row<SourceFormat::kQ4_1, packed::kU4>(in, blocks, to, lane);
    case WeightFormat::kU4Zero:
      return put_row<SourceFormat::kQ4_0, packed::kU4Zero>(in, blocks, to, lane);
    case WeightFormat::kU5:
      return put_row<SourceFormat::kQ5_1, packed::kU5>(in, blocks, to, lane);
    case WeightFormat::kU5Zero:
      return put_row<SourceFormat::kQ5_0, packed::kU5Zero>(in, blocks, to, lane);
    case WeightFormat::kS8:
      return put_row<SourceFormat::kQ8_0, packed::kS8>(in, blocks, to, lane);
    case WeightFormat::kU4K:
      return put_row<SourceFormat::kQ4_K, packed::kU4K>(in, blocks, to, lane);
    case WeightFormat::kU5K:
      return put_row<SourceFormat::kQ5_K, packed::kU5K>(in, blocks, to, lane);
    case WeightFormat::kU6K:
      return put_row<SourceFormat::kQ6_K, packed::kU6K>(in, blocks, to, lane);
    case WeightFormat::kF32:
    case WeightFormat::kBf16:
    case WeightFormat::kU4G64:
    case WeightFormat::kU4G128:
    case WeightFormat::kS8G64:
    case WeightFormat::kS8G128:
      break;
  }
  throw InternalError("a format without blocks of files");
}

}  // namespace llmsrv
