// The launches of attention for any types. Each type of queries has a source of its own, so that they compile side by
// side.
#pragma once

#include <type_traits>
#include <utility>

#include "cuda/kernels/attention_f32.cuh"
#include "cuda/kernels/attention_merge.cuh"
#include "cuda/kernels/attention_prefill.cuh"
#include "cuda/kernels/attention_segments.cuh"
#include "cuda/launch/attention.h"

namespace llmsrv::cuda {

template <int kDim>
struct HeadDim {
  static constexpr int kValue = kDim;
};

// Calls f with the head size as a constant.
template <typename F>
void with_head_dim(int head_dim, const F& f) {
  const auto call_if = [&]<int kDim>(HeadDim<kDim> dim) {
    if (head_dim == kDim) f(dim);
    return head_dim == kDim;
  };
  const bool is_known = [&]<std::size_t... kAt>(std::index_sequence<kAt...>) {
    return (call_if(HeadDim<kHeadDims[kAt]>{}) || ...);
  }(std::make_index_sequence<kHeadDims.size()>());
  if (!is_known) throw std::invalid_argument("CUDA attention has no kernel for head size " + std::to_string(head_dim));
}

template <typename T, typename Kv>
unsigned row_tiles(const AttentionParams<T, Kv>& params, const AttentionGrid& grid, int tile_rows) {
  return static_cast<unsigned>(ceil_div(grid.rows_max * (params.heads / params.cache.kv_heads), tile_rows));
}

// Blocks of `segments` segments each range, for attention without tensor cores.
template <typename Kv>
Grid f32_grid(const AttentionParams<float, Kv>& params, const AttentionGrid& grid, int segments) {
  const int head_dim = params.cache.head_dim;
  if (head_dim > kF32Cols * kWarpThreads) {
    throw std::invalid_argument("CUDA attention has no kernel for head size " + std::to_string(head_dim));
  }
  const dim3 blocks(static_cast<unsigned>(ceil_div(grid.rows_max * params.heads, kF32Warps)),
                    static_cast<unsigned>(segments), static_cast<unsigned>(grid.ranges));
  return {blocks, dim3(kF32Threads), f32_shared_bytes(head_dim)};
}

template <typename T, typename Kv>
void merge_segments(const AttentionParams<T, Kv>& params, const AttentionGrid& grid, const SegmentPartials& partials,
                    Stream stream) {
  const dim3 rows(static_cast<unsigned>(params.heads), static_cast<unsigned>(grid.rows_max),
                  static_cast<unsigned>(grid.ranges));
  const auto warps = static_cast<unsigned>(ceil_div(params.cache.head_dim, kWarpThreads));
  launch(merge_segments_kernel<T, Kv>, {rows, dim3(warps * kWarpThreads)}, stream, params, partials);
}

template <typename T, typename Kv>
void attend_segments(const AttentionParams<T, Kv>& params, const AttentionGrid& grid, const SegmentPartials& partials,
                     Stream stream) {
  if (grid.ranges == 0) return;
  if constexpr (std::is_same_v<T, float>) {
    launch(attend_segment_f32_kernel<Kv>, f32_grid(params, grid, grid.segments_max), stream, params, partials);
  } else {
    with_head_dim(params.cache.head_dim, [&](auto dim) {
      constexpr int kDim = decltype(dim)::kValue;
      const dim3 blocks(static_cast<unsigned>(grid.segments_max),
                        row_tiles(params, grid, kTileRows) * static_cast<unsigned>(params.cache.kv_heads),
                        static_cast<unsigned>(grid.ranges));
      launch(attend_segment_kernel<T, Kv, kDim>, {blocks, dim3(kWarpThreads), kSegmentSharedBytes<T, Kv, kDim>}, stream,
             params, partials);
    });
  }
  merge_segments(params, grid, partials, stream);
}

template <typename T, typename Kv>
void attend_prefill(const AttentionParams<T, Kv>& params, const AttentionGrid& grid, Stream stream) {
  if (grid.ranges == 0) return;
  if constexpr (std::is_same_v<T, float>) {
    launch(attend_prefill_f32_kernel<Kv>, f32_grid(params, grid, 1), stream, params);
  } else {
    with_head_dim(params.cache.head_dim, [&](auto dim) {
      constexpr int kDim = decltype(dim)::kValue;
      constexpr unsigned kSlices = kDim / kPrefillCols<kDim>;
      const dim3 blocks(row_tiles(params, grid, kPrefillRows), static_cast<unsigned>(params.cache.kv_heads) * kSlices,
                        static_cast<unsigned>(grid.ranges));
      launch(attend_prefill_kernel<T, Kv, kDim>, {blocks, dim3(kPrefillThreads), kPrefillSharedBytes<T, Kv, kDim>},
             stream, params);
    });
  }
}

// Makes both of a pair of types.
#define LLMSRV_ATTENTION(T, Kv)                                                                                       \
  template void attend_segments(const AttentionParams<T, Kv>&, const AttentionGrid&, const SegmentPartials&, Stream); \
  template void attend_prefill(const AttentionParams<T, Kv>&, const AttentionGrid&, Stream)

}  // namespace llmsrv::cuda
