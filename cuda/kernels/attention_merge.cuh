// Merges the segments of each row and head in ascending order, and divides by the sum of the weights.
//
// Work: a block per row and head, a thread per column. Grid: (heads, rows of the range with most, ranges).
// Shared memory: none. Bytes moved: head_dim + 2 floats per segment in, a row of the result out.
// Assumes: a thread for each of head_dim columns.
#pragma once

#include "cuda/kernels/attention_context.cuh"

namespace llmsrv::cuda {

constexpr int kMergeThreadsMax = 256;

template <typename T, typename Kv>
__global__ void __launch_bounds__(kMergeThreadsMax)
    merge_segments_kernel(const AttentionParams<T, Kv> p, const SegmentPartials partials) {
  const RangeOnDevice range = p.ranges[blockIdx.z];
  const int token = static_cast<int>(blockIdx.y);
  const int head = static_cast<int>(blockIdx.x);
  const auto col = static_cast<std::size_t>(threadIdx.x);
  const auto head_dim = static_cast<std::size_t>(p.cache.head_dim);
  if (token >= range.row_count || col >= head_dim) return;
  const int segments = segments_of(range, p.window).count;
  float max = kNothingSeen;
  float sum = 0.0f;
  float total = 0.0f;
  for (int segment = 0; segment < segments; ++segment) {
    const std::size_t at = SegmentPartials::index(range, segment, token, p.heads, head);
    const MergeFactors factors = merge_maxima(max, partials.maxima[at]);
    sum = merge(sum, partials.sums[at], factors);
    total = merge(total, partials.out[at * head_dim + col], factors);
  }
  const std::size_t row = static_cast<std::size_t>(range.first_row + token) * static_cast<std::size_t>(p.heads);
  p.out[(row + static_cast<std::size_t>(head)) * head_dim + col] = from_float<T>(total / sum);
}

}  // namespace llmsrv::cuda
