// What both attention kernels on tensor cores share: 16 rows of queries against kTileKeys keys. A row is a token and a
// query head; the heads that share a key head are packed into one tile of rows.
#pragma once

#include "cuda/kernels/attention_context.cuh"

namespace llmsrv::cuda {

constexpr int kTileRows = 16;

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

// Scores of kTileKeys keys in units of log2, masked keys at kNothingSeen.
template <int kDim>
__device__ inline void score_tile(const AttentionParams<Bf16, Bf16>& p, const Bf16* queries, const Bf16* keys,
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
      scores[n][i] = key >= first[i / 2] && key <= last[i / 2] ? p.score_of(scores[n][i]) : kNothingSeen;
    }
  }
}

// One tile of keys: scores, softmax and the weighted sum of kCols columns of the values.
template <int kDim, int kCols>
__device__ inline void attend_tile(const AttentionParams<Bf16, Bf16>& p, const Bf16* queries, const Bf16* keys, const Bf16* values,
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
    state.sum[half] = __fmul_rn(state.sum[half], factor);
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
__device__ inline void load_queries(const AttentionParams<Bf16, Bf16>& p, const TileOfRows& tile, int rows, int threads, Bf16* to) {
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
