// What all attention kernels share: which rows see which keys, and how the parts of a row's context are put together.
//
// The keys of a sequence are cut into segments of kSegmentKeys at fixed positions. A row's softmax runs through a
// segment tile by tile, kTileKeys keys each, and starts anew at the next one; segments are merged in ascending order.
// So the bits of a row follow from its own context alone, whether its keys were read by one block or by many: a token
// that is computed in a prompt's chunk, decoded, or computed again after a preemption gives the same result. That tiles
// without a visible key change nothing rests on exact steps: 2^0 = 1, x * 1 = x, x + 0 = x.
#pragma once

#include "cuda/kernels/kv_layout.cuh"

namespace llmsrv::cuda {

constexpr int kTileKeys = 32;
constexpr int kSegmentKeys = 256;
constexpr float kNothingSeen = -1e30f;  // the largest score of no key at all; finite, so that differences are no NaN
constexpr float kLog2E = 1.4426950408889634f;

// One sequence's rows in a step, in device memory.
struct RangeOnDevice {
  std::int32_t first_row;      // in the step
  std::int32_t row_count;      // row i is at position context_len - row_count + i
  std::int32_t context_len;    // this step's rows included
  std::int32_t first_block;    // in block_ids
  std::int32_t first_partial;  // of this range, in units of (row, segment); see SegmentPartials
};

// T: queries and results. Kv: keys and values as the cache holds them.
template <typename T, typename Kv>
struct AttentionParams {
  const T* queries = nullptr;  // row t starts at t * query_stride: [heads * head_dim] and more
  int query_stride = 0;
  T* out = nullptr;  // [rows, heads * head_dim]
  KvLayout<Kv> cache;
  const RangeOnDevice* ranges = nullptr;
  const std::int32_t* block_ids = nullptr;
  int heads = 0;
  float scale = 1.0f;
  int window = 0x7fffffff;  // tokens a row sees, itself included
  float soft_cap = 0.0f;    // only where has_soft_cap
  bool has_soft_cap = false;

  // A score in units of log2, from a product of query and key. Rounded by itself: two kernels must not differ in what
  // their compiler fuses.
  __device__ float score_of(float product) const {
    float score = product * scale;
    if (has_soft_cap) score = soft_cap * tanhf(score / soft_cap);
    return __fmul_rn(score, kLog2E);
  }
};

// What a segment leaves of a row: [partial][heads], partial = range.first_partial + segment * row_count + token, where
// segment counts from the first that any row of the range sees.
struct SegmentPartials {
  float* out = nullptr;     // [partials, heads, head_dim], not divided by the sum
  float* maxima = nullptr;  // [partials, heads]
  float* sums = nullptr;    // [partials, heads]

  __device__ static std::size_t index(const RangeOnDevice& range, int segment, int token, int heads, int head) {
    const auto partial = static_cast<std::size_t>(range.first_partial + segment * range.row_count + token);
    return partial * static_cast<std::size_t>(heads) + static_cast<std::size_t>(head);
  }
};

struct SegmentsOfRange {
  int first;
  int count;
};
__host__ __device__ inline SegmentsOfRange segments_of(const RangeOnDevice& range, int window) {
  const int first_position = range.context_len - range.row_count;
  const int first_key = first_position >= window ? first_position - window + 1 : 0;
  const int first = first_key / kSegmentKeys;
  return {first, ceil_div(range.context_len, kSegmentKeys) - first};
}

// Adds a part with its own maximum to what was seen before: total = total * before + part * now.
struct MergeFactors {
  float before;
  float now;
};
__device__ inline MergeFactors merge_maxima(float& max, float part_max) {
  const float together = fmaxf(max, part_max);
  const MergeFactors factors{exp2_fast(max - together), exp2_fast(part_max - together)};
  max = together;
  return factors;
}
__device__ inline float merge(float total, float part, const MergeFactors& factors) {
  return __fmaf_rn(part, factors.now, __fmul_rn(total, factors.before));
}

}  // namespace llmsrv::cuda
