// Attention of a few rows over long contexts: decoding. Each segment of a context is its own block; a second kernel
// (attention_merge.cuh) merges the segments of a row.
//
// Work: one warp takes kSegmentKeys keys of one key head for up to 16 packed rows, two tiles of keys in flight.
// Grid: (most segments, key heads * row tiles, ranges); segments that a range does not have leave at once.
// Shared memory: 16 queries and two tiles: at head_dim 128 38 KiB, with one-byte keys 22 KiB.
// Bytes moved: the keys and values of the context once per 16 packed rows; per row, head and segment head_dim + 2
// floats out, and in again by the merge (at group 8 3 % of the first, with one-byte keys 6 %).
// Assumes: head_dim is a multiple of 16; block_size a power of two; the cache of a layer takes less than 64 GiB.
#pragma once

#include "cuda/kernels/attention_tile.cuh"

namespace llmsrv::cuda {

template <typename T, typename Kv, int kDim>
constexpr std::size_t kSegmentSharedBytes =
    kTileRows * kPitch<T, kDim> * sizeof(T) + 2 * sizeof(KvTile<Kv, kDim, kDim>);

template <typename Kv, int kDim>
__device__ inline void store_partial(const TileOfRows& tile, const SegmentPartials& partials, int heads, int segment,
                                     const RowState<kDim>& state) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  LLMSRV_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + half * 8;
    if (!tile.holds(row)) continue;
    const std::size_t at = SegmentPartials::index(tile.range, segment, tile.token(row), heads, tile.head(row));
    float* out = partials.out + at * kDim;
    for_each_pair<Kv>(state, half, [&](int col, float a, float b) { *reinterpret_cast<float2*>(out + col) = {a, b}; });
    if (lane % 4 == 0) {
      partials.maxima[at] = state.max[half];
      partials.sums[at] = state.sum[half];
    }
  }
}

template <typename T, typename Kv, int kDim>
__global__ void __launch_bounds__(kWarpThreads, 1)
    attend_segment_kernel(const AttentionParams<T, Kv> p, const SegmentPartials partials) {
  LLMSRV_DYNAMIC_SHARED(shared);
  T* queries = reinterpret_cast<T*>(shared);
  auto* kv = reinterpret_cast<KvTile<Kv, kDim, kDim>*>(queries + kTileRows * kPitch<T, kDim>);  // [2]
  const int kv_heads = p.cache.kv_heads;
  const TileOfRows tile{p.ranges[blockIdx.z], static_cast<int>(blockIdx.y) / kv_heads * kTileRows, p.heads / kv_heads,
                        static_cast<int>(blockIdx.y) % kv_heads, p.window};
  const SegmentsOfRange segments = segments_of(tile.range, p.window);
  const int segment = static_cast<int>(blockIdx.x);
  if (segment >= segments.count || !tile.holds(0)) return;

  const int lane = static_cast<int>(threadIdx.x);
  int first[2];
  int last[2];
  tile.find_seen(lane / 4, first, last);
  const std::int32_t* blocks = p.block_ids + tile.range.first_block;
  const int begin = (segments.first + segment) * kSegmentKeys;
  const int end = min(begin + kSegmentKeys, tile.range.context_len);
  const int tiles = ceil_div(end - begin, kTileKeys);
  const auto load = [&](int index) {
    load_tile(p.cache, blocks, tile.kv_head, begin + index * kTileKeys, tile.first_key(0), end, 0, kWarpThreads,
              kv[index % 2]);
  };

  RowState<kDim> state;
  state.clear();
  load_queries<kDim>(p, tile, kTileRows, kWarpThreads, queries);
  load(0);
  commit_copies();
  for (int index = 0; index < tiles; ++index) {
    if (index + 1 < tiles) load(index + 1);
    commit_copies();
    wait_for_copies<1>();
    __syncwarp();  // the other lanes' copies of this tile are there
    attend_tile(p, queries, kv[index % 2], first, last, begin + index * kTileKeys, state);
    __syncwarp();  // all lanes have read the tile that the next load overwrites
  }
  finish_segment(state);
  store_partial<Kv>(tile, partials, p.heads, segment, state);
}

}  // namespace llmsrv::cuda
