// Attention of many rows of one sequence over its cached prefix and themselves: prompt chunks.
//
// Work: a block of kPrefillWarps warps takes 64 packed rows of one key head and runs through all keys they see; a warp
// has 16 of the rows. Tiles of keys and values are shared by the warps, two in flight. Grid: (most row tiles, key heads
// * column slices, ranges). With head_dim 256 the columns of the result are cut in two slices, each block with its own
// scores: two sets of sums of 256 columns do not fit into registers.
// Shared memory: 64 queries and two tiles: at head_dim 128 51 KiB, with one-byte keys 35 KiB.
// Bytes moved: per 64 rows the keys and values they see, from L2 when other row tiles run beside it.
// Assumes: head_dim is a multiple of 16; block_size a power of two; the cache of a layer takes less than 64 GiB.
#pragma once

#include "cuda/kernels/attention_tile.cuh"

namespace llmsrv::cuda {

constexpr int kPrefillWarps = 4;
constexpr int kPrefillRows = kPrefillWarps * kTileRows;
constexpr int kPrefillThreads = kPrefillWarps * kWarpThreads;

template <int kDim>
constexpr int kPrefillCols = kDim > 128 ? kDim / 2 : kDim;
template <typename T, typename Kv, int kDim>
constexpr std::size_t kPrefillSharedBytes =
    kPrefillRows * kPitch<T, kDim> * sizeof(T) + 2 * sizeof(KvTile<Kv, kDim, kPrefillCols<kDim>>);

// The segments of a row so far; starts like RowState.
template <int kCols>
__device__ inline void merge_segment(RowState<kCols>& total, RowState<kCols>& part) {
  finish_segment(part);
  LLMSRV_UNROLL
  for (int half = 0; half < 2; ++half) {
    const MergeFactors factors = merge_maxima(total.max[half], part.max[half]);
    total.sum[half] = merge(total.sum[half], part.sum[half], factors);
    LLMSRV_UNROLL
    for (int n = 0; n < kCols / 8; ++n) {
      LLMSRV_UNROLL
      for (int i = half * 2; i < half * 2 + 2; ++i) total.out[n][i] = merge(total.out[n][i], part.out[n][i], factors);
    }
  }
  part.clear();
}

template <int kDim, typename T, typename Kv, int kCols>
__device__ inline void store_rows(const AttentionParams<T, Kv>& p, const TileOfRows& tile, int first_row, int first_col,
                                  const RowState<kCols>& total) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  LLMSRV_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + lane / 4 + half * 8;
    if (!tile.holds(row)) continue;
    const auto step_row = static_cast<std::size_t>(tile.range.first_row + tile.token(row));
    T* out = p.out + (step_row * static_cast<std::size_t>(p.heads) + static_cast<std::size_t>(tile.head(row))) * kDim +
             first_col;
    for_each_pair<Kv>(total, half, [&](int col, float a, float b) {
      *reinterpret_cast<std::uint32_t*>(out + col) = pack_pair<T>(a / total.sum[half], b / total.sum[half]);
    });
  }
}

template <typename T, typename Kv, int kDim>
__global__ void __launch_bounds__(kPrefillThreads, 1) attend_prefill_kernel(const AttentionParams<T, Kv> p) {
  LLMSRV_DYNAMIC_SHARED(shared);
  constexpr int kCols = kPrefillCols<kDim>;
  T* queries = reinterpret_cast<T*>(shared);
  auto* kv = reinterpret_cast<KvTile<Kv, kDim, kCols>*>(queries + kPrefillRows * kPitch<T, kDim>);  // [2]
  const int kv_heads = p.cache.kv_heads;
  const TileOfRows tile{p.ranges[blockIdx.z], static_cast<int>(blockIdx.x) * kPrefillRows, p.heads / kv_heads,
                        static_cast<int>(blockIdx.y) % kv_heads, p.window};
  if (!tile.holds(0)) return;
  const int first_col = static_cast<int>(blockIdx.y) / kv_heads * kCols;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarpThreads * kTileRows;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  int first[2];
  int last[2];
  tile.find_seen(warp_row + lane / 4, first, last);
  const std::int32_t* blocks = p.block_ids + tile.range.first_block;
  const int last_row = min(kPrefillRows, tile.range.row_count * tile.group - tile.first) - 1;
  const int end = tile.position(last_row) + 1;
  const int begin = tile.first_key(0) / kSegmentKeys * kSegmentKeys;
  const int tiles = ceil_div(end - begin, kTileKeys);
  const auto load = [&](int index) {
    load_tile(p.cache, blocks, tile.kv_head, begin + index * kTileKeys, tile.first_key(0), end, first_col,
              kPrefillThreads, kv[index % 2]);
  };

  RowState<kCols> total;
  RowState<kCols> part;
  total.clear();
  part.clear();
  load_queries<kDim>(p, tile, kPrefillRows, kPrefillThreads, queries);
  load(0);
  commit_copies();
  for (int index = 0; index < tiles; ++index) {
    if (index + 1 < tiles) load(index + 1);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();  // the other threads' copies of this tile are there
    attend_tile(p, queries + warp_row * kPitch<T, kDim>, kv[index % 2], first, last, begin + index * kTileKeys, part);
    if ((index + 1) % (kSegmentKeys / kTileKeys) == 0 || index + 1 == tiles) merge_segment(total, part);
    __syncthreads();  // all warps have read the tile that the next load overwrites
  }
  store_rows<kDim>(p, tile, warp_row, first_col, total);
}

}  // namespace llmsrv::cuda
