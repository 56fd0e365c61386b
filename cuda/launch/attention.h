// Launches of paged attention. Each returns at once; errors of the launch throw. No ranges: no launch.
#pragma once

#include <array>
#include <cstdint>

#include "cuda/kernels/attention_context.cuh"

namespace llmsrv::cuda {

// Head sizes that queries of bf16 and fp16 have kernels for.
inline constexpr std::array<std::int32_t, 5> kHeadDims = {64, 80, 96, 128, 256};

// Bounds over the ranges of a launch; larger ones cost blocks that leave at once, so that a captured graph may use the
// largest that it will see.
struct AttentionGrid {
  int ranges = 0;
  int rows_max = 0;      // of a range
  int segments_max = 0;  // of a range, segments only
};

// Types: Bf16 queries over Bf16, Fp8 or Int8, Half over Half or Fp8, float over any.
//
// Few rows each, over contexts of any length. `partials` has room for segments * rows of each range.
// Both throw std::invalid_argument for a head size without a kernel: float queries take any up to 256, others those of
// kHeadDims. A row has the same bits from both.
template <typename T, typename Kv>
void attend_segments(const AttentionParams<T, Kv>& params, const AttentionGrid& grid, const SegmentPartials& partials,
                     Stream stream);
// Many rows each.
template <typename T, typename Kv>
void attend_prefill(const AttentionParams<T, Kv>& params, const AttentionGrid& grid, Stream stream);

}  // namespace llmsrv::cuda
