// 32 columns of 16 rows of a packed matrix (cpp/quant/packed_layout.h) as the first operand of multiply_add.
//
// A panel's 16 rows are the 16 rows of the operand. Within 16 columns a lane of t = lane % 4 takes columns 4 t .. 4 t +
// 3, which a packed line has side by side, in the operand's places 2 t, 2 t + 1, 2 t + 8, 2 t + 9: the other operand
// must be loaded in the same order (load_inputs). Integers become bf16 exactly; scales are applied to the sums.
#pragma once

#include "cpp/quant/packed_layout.h"
#include "cuda/kernels/device.cuh"

namespace llmsrv::cuda {

// The formats of cpp/quant/weight_format.h. Tensor cores take all but kF32.
enum class PackedFormat { kF32, kBf16, kU4, kU4Zero, kU5, kU5Zero, kS8, kU4K, kU5K, kU6K, kU4G64, kU4G128 };

// How a format's integers become weights.
struct FormatTraits {
  packed::Superblock layout;
  int zero;  // subtracted from the integers
  bool has_mins;
  bool has_sub_scales;   // the K formats: 8-bit scales in units of d
  bool has_half_scales;  // a scale per 16 columns
};

__host__ __device__ constexpr FormatTraits traits_of(PackedFormat format) {
  switch (format) {
    case PackedFormat::kU4:
      return {packed::kU4, 0, true, false, false};
    case PackedFormat::kU4Zero:
      return {packed::kU4Zero, 8, false, false, false};
    case PackedFormat::kU5:
      return {packed::kU5, 0, true, false, false};
    case PackedFormat::kU5Zero:
      return {packed::kU5Zero, 16, false, false, false};
    case PackedFormat::kS8:
      return {packed::kS8, 128, false, false, false};
    case PackedFormat::kU4K:
      return {packed::kU4K, 0, true, true, false};
    case PackedFormat::kU5K:
      return {packed::kU5K, 0, true, true, false};
    case PackedFormat::kU6K:
      return {packed::kU6K, 32, false, true, true};
    case PackedFormat::kU4G64:
      return {packed::kU4G64, 0, true, false, false};
    case PackedFormat::kU4G128:
      return {packed::kU4G128, 0, true, false, false};
    case PackedFormat::kF32:
      // As if a group of 32 columns were a superblock: 32 lines of a column.
      return {{1, 32 * packed::kLineBytes, 0, 0, 0, 0, 0, 0, 32 * packed::kLineBytes}, 0, false, false, false};
    case PackedFormat::kBf16:
      // Likewise: 16 lines of two columns.
      return {{1, 16 * packed::kLineBytes, 0, 0, 0, 0, 0, 0, 16 * packed::kLineBytes}, 0, false, false, false};
  }
  return {};
}

// A lane's part of a group: of rows lane / 4 and lane / 4 + 8.
struct PackedGroup {
  std::uint32_t values[2][4];  // of each 16 columns, as multiply_add takes them
  float scales[2][2];          // [16 columns][row]
  float mins[2];               // [row]
};

template <typename T>
__device__ inline T load_at(const unsigned char* from) {
  return *reinterpret_cast<const T*>(from);
}
__device__ inline float load_half(const unsigned char* from) {
  return __half2float(half_of_bits(load_at<std::uint16_t>(from)));
}

// The integers of columns 16 step + 4 t .. + 3 of a row, one per byte, before the zero point.
template <PackedFormat kFormat>
__device__ inline std::uint32_t packed_bytes(const unsigned char* superblock, int group, int step, int t, int row) {
  constexpr FormatTraits kTraits = traits_of(kFormat);
  constexpr packed::Superblock kLayout = kTraits.layout;
  const unsigned char* low = superblock + group * kLayout.low_group_bytes + row * 4;
  if constexpr (kFormat == PackedFormat::kS8) {
    return load_at<std::uint32_t>(low + (step * 4 + t) * packed::kLineBytes);
  } else {
    std::uint32_t bytes = load_at<std::uint32_t>(low + t * packed::kLineBytes) >> (4 * step) & 0x0f0f0f0fu;
    const unsigned char* high = superblock + kLayout.high + group * kLayout.high_group_bytes;
    if constexpr (kLayout.high_group_bytes == packed::kMaskGroupBytes) {
      const std::uint32_t bits = high[(step * 4 + t) * 8 + row / 2] >> row % 2 * 4 & 15u;
      bytes |= (bits * 0x00204081u & 0x01010101u) << 4;  // bit i of four to bit 4 of byte i
    } else if constexpr (kLayout.high_group_bytes == packed::kPlaneGroupBytes) {
      const auto plane = load_at<std::uint32_t>(high + step * packed::kLineBytes + row * 4);
      bytes |= (plane >> (2 * t) & 0x03030303u) << 4;
    }
    return bytes;
  }
}

// Two of the four bytes (the first two or the last two) as bf16, less the zero point. bf16 has the integers from 128 to
// 255 side by side: 128 + q is one bit pattern away from q, and the difference of two such is exact.
template <PackedFormat kFormat>
__device__ inline std::uint32_t bytes_to_pair(std::uint32_t bytes, bool last) {
  constexpr std::uint32_t kTwice128 = 0x43004300u;
  const std::uint32_t pair = __byte_perm(bytes, 0, last ? 0x4342 : 0x4140);
  if constexpr (kFormat == PackedFormat::kS8) {
    // (128 + q % 128) - (q < 128 ? 256 : 128)
    return subtract_pairs(kTwice128 | (pair & 0x007f007fu), kTwice128 | (~pair & 0x00800080u));
  } else {
    constexpr std::uint32_t kZero = static_cast<std::uint32_t>(traits_of(kFormat).zero);
    return subtract_pairs(kTwice128 | pair, kTwice128 | kZero | kZero << 16);
  }
}

// Scales and minima of a row.
template <PackedFormat kFormat>
__device__ inline void load_scales(const unsigned char* superblock, int group, int half, int row, PackedGroup& to) {
  constexpr FormatTraits kTraits = traits_of(kFormat);
  constexpr packed::Superblock kLayout = kTraits.layout;
  const int at = group / kLayout.groups_per_scale * packed::kPanelRows + row;
  if constexpr (kFormat == PackedFormat::kBf16) {
    to.scales[0][half] = to.scales[1][half] = 1.0f;
  } else if constexpr (kTraits.has_half_scales) {
    const float d = load_half(superblock + kLayout.d + 2 * row);
    const unsigned char* scales = superblock + kLayout.scales + group * 2 * packed::kPanelRows + row;
    to.scales[0][half] = d * static_cast<float>(load_at<std::int8_t>(scales));
    to.scales[1][half] = d * static_cast<float>(load_at<std::int8_t>(scales + packed::kPanelRows));
  } else if constexpr (kTraits.has_sub_scales) {
    const float d = load_half(superblock + kLayout.d + 2 * row);
    const float d_min = load_half(superblock + kLayout.d_min + 2 * row);
    to.scales[0][half] = to.scales[1][half] = d * static_cast<float>(superblock[kLayout.scales + at]);
    to.mins[half] = -d_min * static_cast<float>(superblock[kLayout.mins + at]);
  } else {
    to.scales[0][half] = to.scales[1][half] = load_half(superblock + kLayout.scales + 2 * at);
    if constexpr (kTraits.has_mins) to.mins[half] = load_half(superblock + kLayout.mins + 2 * at);
  }
}

// Group `index` of a panel, counted from column 0.
template <PackedFormat kFormat>
__device__ inline void load_group(const unsigned char* panel, int index, PackedGroup& to) {
  constexpr packed::Superblock kLayout = traits_of(kFormat).layout;
  const unsigned char* superblock = panel + static_cast<std::size_t>(index / kLayout.groups) * kLayout.bytes;
  const int group = index % kLayout.groups;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  LLMSRV_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + half * 8;
    load_scales<kFormat>(superblock, group, half, row, to);
    LLMSRV_UNROLL
    for (int step = 0; step < 2; ++step) {
      if constexpr (kFormat == PackedFormat::kBf16) {
        const unsigned char* line = superblock + (step * 8 + lane % 4 * 2) * packed::kLineBytes + row * 4;
        to.values[step][half] = load_at<std::uint32_t>(line);
        to.values[step][half + 2] = load_at<std::uint32_t>(line + packed::kLineBytes);
      } else {
        const std::uint32_t bytes = packed_bytes<kFormat>(superblock, group, step, lane % 4, row);
        to.values[step][half] = bytes_to_pair<kFormat>(bytes, false);
        to.values[step][half + 2] = bytes_to_pair<kFormat>(bytes, true);
      }
    }
  }
}

}  // namespace llmsrv::cuda
