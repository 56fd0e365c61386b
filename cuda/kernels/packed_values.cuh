// The weights that a packed matrix stands for, four columns of a row at a time: bit for bit what the core's
// PackedMatrix::unpack_row gives. A product of an integer and its scale has at most 24 bits, so that it makes no
// difference whether the compiler fuses it with the sum behind it.
#pragma once

#include "cuda/kernels/packed_group.cuh"

namespace llmsrv::cuda {

struct FourWeights {
  float values[4];
};

// REQUIRES: col is a multiple of 4 and inside the panel; row < packed::kPanelRows
template <PackedFormat kFormat>
__device__ inline FourWeights load_weights(const unsigned char* panel, int row, int col) {
  constexpr FormatTraits kTraits = traits_of(kFormat);
  constexpr packed::Superblock kLayout = kTraits.layout;
  FourWeights result;
  if constexpr (kFormat == PackedFormat::kF32) {
    const unsigned char* at = panel + static_cast<std::size_t>(col) * packed::kLineBytes + row * 4;
    LLMSRV_UNROLL
    for (int i = 0; i < 4; ++i) result.values[i] = load_at<float>(at + i * packed::kLineBytes);
  } else if constexpr (kFormat == PackedFormat::kBf16) {
    const unsigned char* at = panel + static_cast<std::size_t>(col / 2) * packed::kLineBytes + row * 4;
    LLMSRV_UNROLL
    for (int pair = 0; pair < 2; ++pair) {
      const auto word = load_at<std::uint32_t>(at + pair * packed::kLineBytes);
      result.values[2 * pair] = __uint_as_float(word << 16);
      result.values[2 * pair + 1] = __uint_as_float(word & 0xffff0000u);
    }
  } else {
    const int index = col / packed::kGroupCols;
    const int step = col % packed::kGroupCols / 16;
    const unsigned char* superblock = panel + static_cast<std::size_t>(index / kLayout.groups) * kLayout.bytes;
    const int group = index % kLayout.groups;
    PackedGroup scales;
    load_scales<kFormat>(superblock, group, 0, row, scales);
    const std::uint32_t bytes = packed_bytes<kFormat>(superblock, group, step, col % 16 / 4, row);
    LLMSRV_UNROLL
    for (int i = 0; i < 4; ++i) {
      const auto quant = static_cast<float>(static_cast<int>(bytes >> (8 * i) & 0xffu) - kTraits.zero);
      // One scale for both halves of a group, or one each.
      const float scale = kTraits.has_half_scales && step == 1 ? scales.scales[1][0] : scales.scales[0][0];
      result.values[i] = scale * quant;
      if constexpr (kTraits.has_mins) result.values[i] += scales.mins[0];
    }
  }
  return result;
}

}  // namespace llmsrv::cuda
