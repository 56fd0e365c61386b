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

// Elements from one row in shared memory to the next: an odd number of 16 bytes, so that the eight rows of a matrix
// load are in different banks.
template <typename T, int kDim>
constexpr int kPitch = static_cast<int>((kDim * sizeof(T) / 16 | 1) * 16 / sizeof(T));

// kTileKeys keys and kCols columns of their values in shared memory, as the cache holds them.
template <typename Kv>
struct TileScales {};
template <typename Kv>
  requires kIsScaled<Kv>
struct TileScales<Kv> {
  float key_scales[kTileKeys];
  float value_scales[kTileKeys];
};
template <typename Kv, int kDim, int kCols>
struct alignas(16) KvTile : TileScales<Kv> {
  Kv keys[kTileKeys * kPitch<Kv, kDim>];
  Kv values[kTileKeys * kPitch<Kv, kCols>];
};

// A lane's part of 16 rows: of rows lane / 4 and lane / 4 + 8, in the layout of multiply_add's result; which columns
// these are says for_each_pair().
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

// Calls f(column, a, b) with the result of columns `column` and the next one, for all that this lane has of a row.
template <typename Kv, int kCols, typename F>
__device__ inline void for_each_pair(const RowState<kCols>& state, int half, const F& f) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  LLMSRV_UNROLL
  for (int n = 0; n < kCols / 8; ++n) {
    if constexpr (kIsScaled<Kv>) {  // as add_values() leaves them
      const int i = half * 2 + n % 2;
      f(n / 2 * 16 + lane % 4 * 4 + n % 2 * 2, state.out[n / 2 * 2][i], state.out[n / 2 * 2 + 1][i]);
    } else {
      f(n * 8 + lane % 4 * 2, state.out[n][half * 2], state.out[n][half * 2 + 1]);
    }
  }
}

// Products of 16 queries and kTileKeys keys over 16 elements from `d` on, added to `scores`.
template <int kDim, typename T>
__device__ inline void multiply_keys(const T* queries, const T* keys, int d, float (&scores)[kTileKeys / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  std::uint32_t a[4];
  load_matrices<false>(a, queries + lane % 16 * kPitch<T, kDim> + d + lane / 16 * 8);
  LLMSRV_UNROLL
  for (int n = 0; n < kTileKeys / 16; ++n) {
    std::uint32_t b[4];
    load_matrices<false>(b, keys + (n * 16 + lane % 8 + lane / 16 * 8) * kPitch<T, kDim> + d + lane / 8 % 2 * 8);
    multiply_add<T>(scores[n * 2], a, {b[0], b[1]});
    multiply_add<T>(scores[n * 2 + 1], a, {b[2], b[3]});
  }
}

// The same with one-byte keys. A lane gets four neighbouring elements of a key; where a multiplication expects columns
// t, t + 1 and t + 8, t + 9 it gets elements 0, 2 and 1, 3 of the four, of queries and keys alike.
template <int kDim, typename T, typename Kv>
  requires kIsScaled<Kv>
__device__ inline void multiply_keys(const T* queries, const Kv* keys, int d, float (&scores)[kTileKeys / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const T* query = queries + lane / 4 * kPitch<T, kDim> + d + lane % 4 * 4;
  const uint2 low = *reinterpret_cast<const uint2*>(query);
  const uint2 high = *reinterpret_cast<const uint2*>(query + 8 * kPitch<T, kDim>);
  const std::uint32_t a[4] = {__byte_perm(low.x, low.y, 0x5410), __byte_perm(high.x, high.y, 0x5410),
                              __byte_perm(low.x, low.y, 0x7632), __byte_perm(high.x, high.y, 0x7632)};
  std::uint32_t b[4];
  load_matrices<false>(b, keys + lane * kPitch<Kv, kDim> + d);
  LLMSRV_UNROLL
  for (int n = 0; n < kTileKeys / 8; ++n) {
    multiply_add<T>(scores[n], a, {widen_pair<Kv, T>(b[n] << 8), widen_pair<Kv, T>(b[n])});
  }
}

// Products of queries and keys from first_key on, in the layout of multiply_add's result, become scores in units of
// log2; masked keys get kNothingSeen.
template <typename T, typename Kv>
__device__ inline void mask_scores(const AttentionParams<T, Kv>& p, const int (&first)[2], const int (&last)[2],
                                   int first_key, float (&scores)[kTileKeys / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  LLMSRV_UNROLL
  for (int n = 0; n < kTileKeys / 8; ++n) {
    LLMSRV_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int key = first_key + n * 8 + lane % 4 * 2 + i % 2;
      scores[n][i] = key >= first[i / 2] && key <= last[i / 2] ? p.score_of(scores[n][i]) : kNothingSeen;
    }
  }
}

// Scores of kTileKeys keys in units of log2, masked keys at kNothingSeen.
template <typename T, typename Kv, int kDim, int kCols>
__device__ inline void score_tile(const AttentionParams<T, Kv>& p, const T* queries,
                                  const KvTile<Kv, kDim, kCols>& tile, const int (&first)[2], const int (&last)[2],
                                  int first_key, float (&scores)[kTileKeys / 8][4]) {
  LLMSRV_UNROLL
  for (int n = 0; n < kTileKeys / 8; ++n) {
    LLMSRV_UNROLL
    for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;
  }
  LLMSRV_UNROLL_BY_4  // more at once needs more registers than there are at head_dim 256
  for (int d = 0; d < kDim; d += 16) multiply_keys<kDim>(queries, tile.keys, d, scores);
  if constexpr (kIsScaled<Kv>) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    LLMSRV_UNROLL
    for (int n = 0; n < kTileKeys / 8; ++n) {
      LLMSRV_UNROLL
      for (int i = 0; i < 4; ++i) scores[n][i] *= tile.key_scales[n * 8 + lane % 4 * 2 + i % 2];
    }
  }
  mask_scores(p, first, last, first_key, scores);
}

// What weights become before they meet the values. A weight times a value's scale may be too small for Half.
template <typename T, typename Kv>
using WeightOf = std::conditional_t<kIsScaled<Kv>, Bf16, T>;

// state.out += weights * values of a tile, keys in ascending order.
template <typename T, int kCols>
__device__ inline void add_values(const std::uint32_t (&weights)[kTileKeys / 16][4], const T* values,
                                  RowState<kCols>& state) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  LLMSRV_UNROLL
  for (int k = 0; k < kTileKeys / 16; ++k) {
    LLMSRV_UNROLL
    for (int n = 0; n < kCols / 16; ++n) {
      std::uint32_t b[4];
      load_matrices<true>(b, values + (k * 16 + lane % 16) * kPitch<T, kCols> + n * 16 + lane / 16 * 8);
      multiply_add<T>(state.out[n * 2], weights[k], {b[0], b[1]});
      multiply_add<T>(state.out[n * 2 + 1], weights[k], {b[2], b[3]});
    }
  }
}

// The same of one-byte values. A lane gets two neighbouring columns of two keys; even columns make one multiplication,
// odd ones the next.
template <typename T, int kCols, typename Kv>
  requires kIsScaled<Kv>
__device__ inline void add_values(const std::uint32_t (&weights)[kTileKeys / 16][4], const Kv* values,
                                  RowState<kCols>& state) {
  using W = WeightOf<T, Kv>;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  LLMSRV_UNROLL
  for (int n = 0; n < kCols / 16; ++n) {
    std::uint32_t b[4];
    load_matrices<true>(b, values + lane * kPitch<Kv, kCols> + n * 16);
    LLMSRV_UNROLL
    for (int k = 0; k < kTileKeys / 16; ++k) {
      multiply_add<W>(state.out[n * 2], weights[k],
                      {widen_pair<Kv, W>(b[k * 2] << 8), widen_pair<Kv, W>(b[k * 2 + 1] << 8)});
      multiply_add<W>(state.out[n * 2 + 1], weights[k], {widen_pair<Kv, W>(b[k * 2]), widen_pair<Kv, W>(b[k * 2 + 1])});
    }
  }
}

// One step of the softmax of a lane's two rows: scores become weights; `factors` says by what the sums and results so
// far shrink, of which the sums are done here.
__device__ inline void soften(float (&scores)[kTileKeys / 8][4], float (&maxima)[2], float (&sums)[2],
                              float (&factors)[2]) {
  LLMSRV_UNROLL
  for (int half = 0; half < 2; ++half) {
    float max = maxima[half];
    LLMSRV_UNROLL
    for (int n = 0; n < kTileKeys / 8; ++n) max = fmaxf(max, fmaxf(scores[n][half * 2], scores[n][half * 2 + 1]));
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 1));
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 2));
    factors[half] = exp2_fast(maxima[half] - max);
    maxima[half] = max;
    sums[half] = __fmul_rn(sums[half], factors[half]);
    LLMSRV_UNROLL
    for (int n = 0; n < kTileKeys / 8; ++n) {
      LLMSRV_UNROLL
      for (int i = half * 2; i < half * 2 + 2; ++i) {
        // A row that has seen nothing yet has its maximum at kNothingSeen too: its masked keys must not count as 2^0.
        scores[n][i] = scores[n][i] == kNothingSeen ? 0.0f : exp2_fast(scores[n][i] - max);
        sums[half] += scores[n][i];
      }
    }
  }
}

template <int kCols>
__device__ inline void shrink(RowState<kCols>& state, const float (&factors)[2]) {
  LLMSRV_UNROLL
  for (int n = 0; n < kCols / 8; ++n) {
    LLMSRV_UNROLL
    for (int i = 0; i < 4; ++i) state.out[n][i] *= factors[i / 2];
  }
}

// Weights as multiply_add's first operand, 16 keys each.
template <typename W>
__device__ inline void pack_weights(const float (&weights)[kTileKeys / 8][4],
                                    std::uint32_t (&packed)[kTileKeys / 16][4]) {
  LLMSRV_UNROLL
  for (int n = 0; n < kTileKeys / 8; ++n) {
    packed[n / 2][n % 2 * 2] = pack_pair<W>(weights[n][0], weights[n][1]);
    packed[n / 2][n % 2 * 2 + 1] = pack_pair<W>(weights[n][2], weights[n][3]);
  }
}

// One tile of keys: scores, softmax and the weighted sum of kCols columns of the values.
template <typename T, typename Kv, int kDim, int kCols>
__device__ inline void attend_tile(const AttentionParams<T, Kv>& p, const T* queries,
                                   const KvTile<Kv, kDim, kCols>& tile, const int (&first)[2], const int (&last)[2],
                                   int first_key, RowState<kCols>& state) {
  float scores[kTileKeys / 8][4];
  score_tile(p, queries, tile, first, last, first_key, scores);
  float factors[2];
  soften(scores, state.max, state.sum, factors);
  shrink(state, factors);
  if constexpr (kIsScaled<Kv>) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    LLMSRV_UNROLL
    for (int n = 0; n < kTileKeys / 8; ++n) {
      LLMSRV_UNROLL
      for (int i = 0; i < 4; ++i) scores[n][i] *= tile.value_scales[n * 8 + lane % 4 * 2 + i % 2];
    }
  }
  std::uint32_t weights[kTileKeys / 16][4];
  pack_weights<WeightOf<T, Kv>>(scores, weights);
  add_values<T>(weights, tile.values, state);
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
// 0 * NaN would be NaN. Places in the cache are counted in 16 bytes, to be one register each.
template <typename Kv, int kDim, int kCols>
__device__ inline void load_tile(const KvLayout<Kv>& cache, const std::int32_t* blocks, int kv_head, int first_key,
                                 int begin, int end, int first_col, int threads, KvTile<Kv, kDim, kCols>& tile) {
  constexpr int kElements = 16 / sizeof(Kv);
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int mine = first_key + lane;  // each lane looks one key up for its warp
  const bool is_mine_wanted = mine >= begin && mine < end;
  const auto tokens = static_cast<std::uint32_t>(cache.kv_heads * cache.block_size);
  const auto my_token = static_cast<std::uint32_t>(kv_head * cache.block_size + (mine & (cache.block_size - 1)));
  const std::uint32_t my_block =
      is_mine_wanted ? static_cast<std::uint32_t>(blocks[mine >> cache.block_shift]) * cache.block_chunks() : 0;
  const std::uint32_t my_key = my_block + my_token * (kDim / kElements);
  const auto load_rows = [&](std::uint32_t side, Kv* to, auto cols) {
    constexpr int kChunks = decltype(cols)::value / kElements;
    for (int i = static_cast<int>(threadIdx.x); i < kTileKeys * kChunks; i += threads) {
      const int row = i / kChunks;
      const int chunk = i % kChunks;
      const std::uint32_t from = __shfl_sync(kAllLanes, my_key, row) + side + static_cast<std::uint32_t>(chunk);
      const bool wanted = first_key + row >= begin && first_key + row < end;
      copy_async_16(to + row * kPitch<Kv, decltype(cols)::value> + chunk * kElements, cache.chunk(wanted ? from : 0),
                    wanted);
    }
  };
  const std::uint32_t half = tokens * (kDim / kElements);
  load_rows(0, tile.keys, std::integral_constant<int, kDim>{});
  load_rows(half + static_cast<std::uint32_t>(first_col / kElements), tile.values,
            std::integral_constant<int, kCols>{});
  if constexpr (kIsScaled<Kv>) {
    if (static_cast<int>(threadIdx.x) >= kTileKeys) return;
    const auto* scales = reinterpret_cast<const float2*>(cache.chunk(my_block + 2 * half)) + my_token;
    copy_async_4(&tile.key_scales[lane], &scales->x, is_mine_wanted);
    copy_async_4(&tile.value_scales[lane], &scales->y, is_mine_wanted);
  }
}

// Starts the copies of `rows` rows of queries; rows that the tile does not hold become zeros.
template <int kDim, typename T, typename Kv>
__device__ inline void load_queries(const AttentionParams<T, Kv>& p, const TileOfRows& tile, int rows, int threads,
                                    T* to) {
  constexpr int kElements = 16 / sizeof(T);
  constexpr int kChunks = kDim / kElements;
  for (int i = static_cast<int>(threadIdx.x); i < rows * kChunks; i += threads) {
    const int row = i / kChunks;
    const int col = i % kChunks * kElements;
    const bool wanted = tile.holds(row);
    const T* from = p.queries;
    if (wanted) {
      from +=
          static_cast<std::size_t>(tile.range.first_row + tile.token(row)) * static_cast<std::size_t>(p.query_stride) +
          static_cast<std::size_t>(tile.head(row) * kDim + col);
    }
    copy_async_16(to + row * kPitch<T, kDim> + col, from, wanted);
  }
}

}  // namespace llmsrv::cuda
