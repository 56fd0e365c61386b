// Attention of float32 queries, without tensor cores: the arithmetic that a whole model is held against the CPU with.
// Every head size, every type of cache. Decoding leaves segments to blocks of their own, as attention_segments.cuh
// does, and a prompt's chunk runs through all of them in one; both take the same steps.
//
// Work: a warp per row (a token and a head), kF32Warps to a block; it takes a tile of kTileKeys keys at a time. A lane
// has a key for the scores, columns lane, lane + 32, ... for the weighted sum. Grid: (most rows / kF32Warps, most
// segments, ranges), for chunks one segment.
// Shared memory: kF32Warps (head_dim + kTileKeys) * 4 bytes: 2.5 KiB at head_dim 128.
// Bytes moved: the keys and values that a row sees, once per row; from L2 for all but one head of a group.
// Assumes: head_dim is at most kF32Cols * 32; block_size a power of two.
#pragma once

#include "cuda/kernels/attention_context.cuh"
#include "cuda/kernels/reduce.cuh"

namespace llmsrv::cuda {

constexpr int kF32Warps = 4;
constexpr int kF32Threads = kF32Warps * kWarpThreads;
constexpr int kF32Cols = 8;  // of a lane

inline std::size_t f32_shared_bytes(int head_dim) {
  return static_cast<std::size_t>(kF32Warps * (head_dim + kTileKeys)) * sizeof(float);
}

// A warp's row and the keys it sees.
struct F32Row {
  RangeOnDevice range;
  int token;
  int head;
  int kv_head;
  int first_key;
  int end_key;
};

// A lane's columns of a row. The sum is of this lane's keys until finish().
struct F32State {
  float out[kF32Cols];
  float max;
  float sum;

  __device__ void clear() {
    LLMSRV_UNROLL
    for (int j = 0; j < kF32Cols; ++j) out[j] = 0.0f;
    max = kNothingSeen;
    sum = 0.0f;
  }
  // Calls f(j, column) for each column of this lane.
  template <typename F>
  __device__ static void for_each(int head_dim, const F& f) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    LLMSRV_UNROLL
    for (int j = 0; j < kF32Cols; ++j) {
      if (lane + j * kWarpThreads < head_dim) f(j, lane + j * kWarpThreads);
    }
  }
  __device__ void finish() { sum = warp_sum(sum); }
};

// A warp's shared memory.
struct F32Shared {
  float* query;    // [head_dim]
  float* weights;  // [kTileKeys]
};

// The row of this warp, if there is one; its query is in shared memory then.
template <typename Kv>
__device__ inline bool find_row(const AttentionParams<float, Kv>& p, F32Row& row, const F32Shared& shared) {
  row.range = p.ranges[blockIdx.z];
  const int index = static_cast<int>(blockIdx.x) * kF32Warps + static_cast<int>(threadIdx.x) / kWarpThreads;
  row.token = index / p.heads;
  row.head = index % p.heads;
  if (row.token >= row.range.row_count) return false;  // for the whole warp
  row.kv_head = row.head / (p.heads / p.cache.kv_heads);
  row.end_key = row.range.context_len - row.range.row_count + row.token + 1;
  row.first_key = max(row.end_key - p.window, 0);
  const float* query =
      p.queries + static_cast<std::size_t>(row.range.first_row + row.token) * static_cast<std::size_t>(p.query_stride) +
      static_cast<std::size_t>(row.head * p.cache.head_dim);
  F32State::for_each(p.cache.head_dim, [&](int, int col) { shared.query[col] = query[col]; });
  __syncwarp();  // the query is there
  return true;
}

// The product of a query and a key, elements in ascending order.
template <typename Kv>
__device__ inline float multiply_key(const float* query, const Kv* key, int head_dim) {
  float product = 0.0f;
  for (int i = 0; i < head_dim; ++i) product = __fmaf_rn(query[i], to_float(key[i]), product);
  return product;
}

// The keys of segment `segment` that the row sees, tile by tile; values are added in ascending order.
template <typename Kv>
__device__ inline void attend_row(const AttentionParams<float, Kv>& p, const F32Row& row, const F32Shared& shared,
                                  int segment, F32State& state) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const std::int32_t* blocks = p.block_ids + row.range.first_block;
  const int begin = max(segment * kSegmentKeys, row.first_key / kTileKeys * kTileKeys);
  const int end = min((segment + 1) * kSegmentKeys, row.end_key);
  for (int tile = begin; tile < end; tile += kTileKeys) {
    const int key = tile + lane;
    const bool is_seen = key >= row.first_key && key < end;
    float score = kNothingSeen;
    float value_scale = 1.0f;
    if (is_seen) {
      float product =
          multiply_key(shared.query, p.cache.data + p.cache.key_of(blocks, row.kv_head, key), p.cache.head_dim);
      if constexpr (kIsScaled<Kv>) {
        const float2 scales = *p.cache.scales_of(blocks, row.kv_head, key);
        product *= scales.x;
        value_scale = scales.y;
      }
      score = p.score_of(product);
    }
    const float before = state.max;
    state.max = fmaxf(before, warp_max(score));
    const float factor = exp2_fast(before - state.max);
    const float weight = is_seen ? exp2_fast(score - state.max) : 0.0f;
    state.sum = __fmaf_rn(state.sum, factor, weight);
    LLMSRV_UNROLL
    for (int j = 0; j < kF32Cols; ++j) state.out[j] *= factor;
    shared.weights[lane] = weight * value_scale;
    __syncwarp();  // the weights are there
    for (int seen = max(tile, row.first_key); seen < min(tile + kTileKeys, end); ++seen) {
      const Kv* value = p.cache.data + p.cache.half_block() + p.cache.key_of(blocks, row.kv_head, seen);
      const float its_weight = shared.weights[seen - tile];
      F32State::for_each(p.cache.head_dim, [&](int j, int col) {
        state.out[j] = __fmaf_rn(its_weight, to_float(value[col]), state.out[j]);
      });
    }
    __syncwarp();  // all lanes have read the weights that the next tile overwrites
  }
  state.finish();
}

__device__ inline F32Shared f32_shared(unsigned char* shared, int head_dim) {
  float* mine =
      reinterpret_cast<float*>(shared) + static_cast<int>(threadIdx.x) / kWarpThreads * (head_dim + kTileKeys);
  return {mine, mine + head_dim};
}

template <typename Kv>
__global__ void __launch_bounds__(kF32Threads)
    attend_segment_f32_kernel(const AttentionParams<float, Kv> p, const SegmentPartials partials) {
  LLMSRV_DYNAMIC_SHARED(memory);
  const F32Shared shared = f32_shared(memory, p.cache.head_dim);
  const int segment = static_cast<int>(blockIdx.y);
  const SegmentsOfRange segments = segments_of(p.ranges[blockIdx.z], p.window);
  F32Row row;
  if (segment >= segments.count || !find_row(p, row, shared)) return;

  F32State state;
  state.clear();
  attend_row(p, row, shared, segments.first + segment, state);
  const std::size_t at = SegmentPartials::index(row.range, segment, row.token, p.heads, row.head);
  float* out = partials.out + at * static_cast<std::size_t>(p.cache.head_dim);
  F32State::for_each(p.cache.head_dim, [&](int j, int col) { out[col] = state.out[j]; });
  if (threadIdx.x % kWarpThreads == 0) {
    partials.maxima[at] = state.max;
    partials.sums[at] = state.sum;
  }
}

template <typename Kv>
__global__ void __launch_bounds__(kF32Threads) attend_prefill_f32_kernel(const AttentionParams<float, Kv> p) {
  LLMSRV_DYNAMIC_SHARED(memory);
  const F32Shared shared = f32_shared(memory, p.cache.head_dim);
  F32Row row;
  if (!find_row(p, row, shared)) return;

  F32State total;
  total.clear();
  for (int segment = row.first_key / kSegmentKeys; segment * kSegmentKeys < row.end_key; ++segment) {
    F32State part;
    part.clear();
    attend_row(p, row, shared, segment, part);
    const MergeFactors factors = merge_maxima(total.max, part.max);
    total.sum = merge(total.sum, part.sum, factors);
    LLMSRV_UNROLL
    for (int j = 0; j < kF32Cols; ++j) total.out[j] = merge(total.out[j], part.out[j], factors);
  }
  float* out = p.out + (static_cast<std::size_t>(row.range.first_row + row.token) * static_cast<std::size_t>(p.heads) +
                        static_cast<std::size_t>(row.head)) *
                           static_cast<std::size_t>(p.cache.head_dim);
  F32State::for_each(p.cache.head_dim, [&](int j, int col) { out[col] = total.out[j] / total.sum; });
}

}  // namespace llmsrv::cuda
