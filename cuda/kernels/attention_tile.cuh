// What both attention kernels share: 16 rows of queries against kTileKeys keys on tensor cores, and how the parts of a
// row's context are put together.
//
// A row is a token and a query head; the heads that share a key head are packed into one tile of rows. The keys of a
// sequence are cut into segments of kSegmentKeys at fixed positions. A row's softmax runs through a segment tile by
// tile and starts anew at the next one; segments are merged in ascending order. So the bits of a row follow from its
// own context alone, whether its keys were read by one block or by many: a token that is computed in a prompt's chunk,
// decoded, or computed again after a preemption gives the same result.
// That tiles without a visible key change nothing rests on exact steps: 2^0 = 1, x * 1 = x, x + 0 = x.
#pragma once

#include "cuda/kernels/kv_layout.cuh"

namespace llmsrv::cuda {

constexpr int kTileRows = 16;
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

struct AttentionParams {
  const Bf16* queries = nullptr;  // row t starts at t * query_stride: [heads * head_dim] and more
  int query_stride = 0;
  Bf16* out = nullptr;  // [rows, heads * head_dim]
  KvLayout<Bf16> cache;
  const RangeOnDevice* ranges = nullptr;
  const std::int32_t* block_ids = nullptr;
  int heads = 0;
  float scale = 1.0f;
  int window = 0x7fffffff;  // tokens a row sees, itself included
  float soft_cap = 0.0f;    // only where has_soft_cap
  bool has_soft_cap = false;
};

// The rows of a tile in their sequence. Row r of the tile is token r / group, head r % group of the key head's queries.
struct TileOfRows {
  RangeOnDevice range;
  int first;  // packed index of row 0
  int group;
  int kv_head;
  int window;

  __device__ bool holds(int row) const { return first + row < range.row_count * group; }
  __device__ int token(int row) const { return (first + row) / group; }
  __device__ int head(int row) const { return kv_head * group + (first + row) % group; }
  __device__ int position(int row) const { return range.context_len - range.row_count + token(row); }
  __device__ int first_key(int row) const { return max(position(row) - window + 1, 0); }
  // The keys that a lane's two rows see, `row` and `row` + 8; none where there is no such row.
  __device__ void find_seen(int row, int (&first_seen)[2], int (&last_seen)[2]) const {
    LLMSRV_UNROLL
    for (int half = 0; half < 2; ++half, row += 8) {
      first_seen[half] = first_key(row);
      last_seen[half] = holds(row) ? position(row) : -1;
    }
  }
};

// Elements of a row in shared memory: the gap keeps the eight rows of a matrix load in different banks.
template <int kDim>
constexpr int kPitch = kDim + 8;

// A lane's part of 16 rows: of rows lane / 4 and lane / 4 + 8, in the layout of multiply_add's result.
template <int kCols>
struct RowState {
  float out[kCols / 8][4];
  float max[2];
  float sum[2];  // of this lane's keys until finish_segment()

  __device__ void clear() {
    LLMSRV_UNROLL
    for (int n = 0; n < kCols / 8; ++n) {
      LLMSRV_UNROLL
      for (int i = 0; i < 4; ++i) out[n][i] = 0.0f;
    }
    max[0] = max[1] = kNothingSeen;
    sum[0] = sum[1] = 0.0f;
  }
};

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

// Scores of kTileKeys keys in units of log2, masked keys at kNothingSeen.
template <int kDim>
__device__ inline void score_tile(const AttentionParams& p, const Bf16* queries, const Bf16* keys,
                                  const int (&first)[2], const int (&last)[2], int first_key,
                                  float (&scores)[kTileKeys / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  LLMSRV_UNROLL
  for (int n = 0; n < kTileKeys / 8; ++n) {
    LLMSRV_UNROLL
    for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;
  }
  LLMSRV_UNROLL
  for (int d = 0; d < kDim; d += 16) {
    std::uint32_t a[4];
    load_matrices<false>(a, queries + lane % 16 * kPitch<kDim> + d + lane / 16 * 8);
    LLMSRV_UNROLL
    for (int n = 0; n < kTileKeys / 16; ++n) {
      std::uint32_t b[4];
      load_matrices<false>(b, keys + (n * 16 + lane % 8 + lane / 16 * 8) * kPitch<kDim> + d + lane / 8 % 2 * 8);
      multiply_add(scores[n * 2], a, {b[0], b[1]});
      multiply_add(scores[n * 2 + 1], a, {b[2], b[3]});
    }
  }
  LLMSRV_UNROLL
  for (int n = 0; n < kTileKeys / 8; ++n) {
    LLMSRV_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int key = first_key + n * 8 + lane % 4 * 2 + i % 2;
      float score = scores[n][i] * p.scale;
      if (p.has_soft_cap) score = p.soft_cap * tanhf(score / p.soft_cap);
      scores[n][i] = key >= first[i / 2] && key <= last[i / 2] ? score * kLog2E : kNothingSeen;
    }
  }
}

// One tile of keys: scores, softmax and the weighted sum of kCols columns of the values.
template <int kDim, int kCols>
__device__ inline void attend_tile(const AttentionParams& p, const Bf16* queries, const Bf16* keys, const Bf16* values,
                                   const int (&first)[2], const int (&last)[2], int first_key, RowState<kCols>& state) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  float scores[kTileKeys / 8][4];
  score_tile<kDim>(p, queries, keys, first, last, first_key, scores);
  LLMSRV_UNROLL
  for (int half = 0; half < 2; ++half) {
    float max = state.max[half];
    LLMSRV_UNROLL
    for (int n = 0; n < kTileKeys / 8; ++n) max = fmaxf(max, fmaxf(scores[n][half * 2], scores[n][half * 2 + 1]));
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 1));
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 2));
    const float factor = exp2_fast(state.max[half] - max);
    state.max[half] = max;
    state.sum[half] *= factor;
    LLMSRV_UNROLL
    for (int n = 0; n < kCols / 8; ++n) {
      state.out[n][half * 2] *= factor;
      state.out[n][half * 2 + 1] *= factor;
    }
    LLMSRV_UNROLL
    for (int n = 0; n < kTileKeys / 8; ++n) {
      LLMSRV_UNROLL
      for (int i = half * 2; i < half * 2 + 2; ++i) {
        // A row that has seen nothing yet has its maximum at kNothingSeen too: its masked keys must not count as 2^0.
        scores[n][i] = scores[n][i] == kNothingSeen ? 0.0f : exp2_fast(scores[n][i] - max);
        state.sum[half] += scores[n][i];
      }
    }
  }
  LLMSRV_UNROLL
  for (int k = 0; k < kTileKeys / 16; ++k) {
    const std::uint32_t weights[4] = {
        pack_pair(scores[2 * k][0], scores[2 * k][1]), pack_pair(scores[2 * k][2], scores[2 * k][3]),
        pack_pair(scores[2 * k + 1][0], scores[2 * k + 1][1]), pack_pair(scores[2 * k + 1][2], scores[2 * k + 1][3])};
    LLMSRV_UNROLL
    for (int n = 0; n < kCols / 16; ++n) {
      std::uint32_t b[4];
      load_matrices<true>(b, values + (k * 16 + lane % 16) * kPitch<kCols> + n * 16 + lane / 16 * 8);
      multiply_add(state.out[n * 2], weights, {b[0], b[1]});
      multiply_add(state.out[n * 2 + 1], weights, {b[2], b[3]});
    }
  }
}

// The sum over the four lanes of a row, in each of them.
template <int kCols>
__device__ inline void finish_segment(RowState<kCols>& state) {
  LLMSRV_UNROLL
  for (int half = 0; half < 2; ++half) {
    state.sum[half] += __shfl_xor_sync(kAllLanes, state.sum[half], 1);
    state.sum[half] += __shfl_xor_sync(kAllLanes, state.sum[half], 2);
  }
}

// Starts the copies of kTileKeys keys and of kCols columns of their values from the cache into shared memory, by
// `threads` threads of whole warps. Keys outside [begin, end) become zeros: what stands there was never written, and
// 0 * NaN would be NaN.
template <int kDim, int kCols>
__device__ inline void load_tile(const KvLayout<Bf16>& cache, const std::int32_t* blocks, int kv_head, int first_key,
                                 int begin, int end, int first_col, int threads, Bf16* keys, Bf16* values) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int mine = first_key + lane;  // each lane looks one key up for its warp
  const std::size_t my_key = mine >= begin && mine < end ? cache.key_of(blocks, kv_head, mine) : std::size_t{0};
  constexpr int kKeyChunks = kDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kTileKeys * kKeyChunks; i += threads) {
    const int row = i / kKeyChunks;
    const int col = i % kKeyChunks * 8;
    const bool wanted = first_key + row >= begin && first_key + row < end;
    copy_async_16(keys + row * kPitch<kDim> + col, cache.data + __shfl_sync(kAllLanes, my_key, row) + col, wanted);
  }
  constexpr int kValueChunks = kCols / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kTileKeys * kValueChunks; i += threads) {
    const int row = i / kValueChunks;
    const int col = i % kValueChunks * 8;
    const bool wanted = first_key + row >= begin && first_key + row < end;
    copy_async_16(values + row * kPitch<kCols> + col,
                  cache.data + cache.half_block() + __shfl_sync(kAllLanes, my_key, row) + first_col + col, wanted);
  }
}

// Starts the copies of `rows` rows of queries; rows that the tile does not hold become zeros.
template <int kDim>
__device__ inline void load_queries(const AttentionParams& p, const TileOfRows& tile, int rows, int threads, Bf16* to) {
  constexpr int kChunks = kDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < rows * kChunks; i += threads) {
    const int row = i / kChunks;
    const int col = i % kChunks * 8;
    const bool wanted = tile.holds(row);
    const Bf16* from = p.queries;
    if (wanted) {
      from +=
          static_cast<std::size_t>(tile.range.first_row + tile.token(row)) * static_cast<std::size_t>(p.query_stride) +
          static_cast<std::size_t>(tile.head(row) * kDim + col);
    }
    copy_async_16(to + row * kPitch<kDim> + col, from, wanted);
  }
}

}  // namespace llmsrv::cuda
