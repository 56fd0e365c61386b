// Attention of a few rows over long contexts: decoding. Each segment of a context is its own block; a second kernel
// (attention_merge.cuh) merges the segments of a row.
//
// Work: one warp takes kSegmentKeys keys of one key head for up to 16 packed rows, two tiles of keys
// in flight. Grid: (most segments, key heads * row tiles, ranges); segments that a range does not have leave at once.
// Shared memory: (16 + 4 kTileKeys)(head_dim + 8) * 2 bytes: 38 KiB at head_dim 128.
// Bytes moved: the keys and values of the context once per 16 packed rows; per row, head and segment head_dim + 2
// floats out, and in again by the merge (3 % of the first at group 8).
// Assumes: head_dim is a multiple of 16; block_size a power of two.
#pragma once

#include "cuda/kernels/attention_tile.cuh"

namespace llmsrv::cuda {

template <int kDim>
constexpr std::size_t kSegmentSharedBytes = (kTileRows + 4 * kTileKeys) * kPitch<kDim> * sizeof(Bf16);

template <int kDim>
__device__ inline void store_partial(const TileOfRows& tile, const SegmentPartials& partials, int heads, int segment,
                                     const RowState<kDim>& state) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  LLMSRV_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + half * 8;
    if (!tile.holds(row)) continue;
    const std::size_t at = SegmentPartials::index(tile.range, segment, tile.token(row), heads, tile.head(row));
    float* out = partials.out + at * kDim + lane % 4 * 2;
    LLMSRV_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      *reinterpret_cast<float2*>(out + n * 8) = {state.out[n][half * 2], state.out[n][half * 2 + 1]};
    }
    if (lane % 4 == 0) {
      partials.maxima[at] = state.max[half];
      partials.sums[at] = state.sum[half];
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(kWarpThreads, 1)
    attend_segment_kernel(const AttentionParams<Bf16, Bf16> p, const SegmentPartials partials) {
  LLMSRV_DYNAMIC_SHARED(shared);
  constexpr int kTileElements = kTileKeys * kPitch<kDim>;
  Bf16* queries = reinterpret_cast<Bf16*>(shared);
  Bf16* keys = queries + kTileRows * kPitch<kDim>;  // [2][kTileKeys][kPitch]
  Bf16* values = keys + 2 * kTileElements;
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
    const int stage = index % 2;
    load_tile<kDim, kDim>(p.cache, blocks, tile.kv_head, begin + index * kTileKeys, tile.first_key(0), end, 0,
                          kWarpThreads, keys + stage * kTileElements, values + stage * kTileElements);
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
    const int stage = index % 2;
    attend_tile<kDim, kDim>(p, queries, keys + stage * kTileElements, values + stage * kTileElements, first, last,
                            begin + index * kTileKeys, state);
    __syncwarp();  // all lanes have read the tile that the next load overwrites
  }
  finish_segment(state);
  store_partial<kDim>(tile, partials, p.heads, segment, state);
}

}  // namespace llmsrv::cuda
