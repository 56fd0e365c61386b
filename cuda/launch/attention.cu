#include "cuda/launch/attention.h"

namespace llmsrv::cuda {
namespace {

template <int kDim>
struct HeadDim {
  static constexpr int kValue = kDim;
};

// Calls f with the head size as a constant.
template <typename F>
void with_head_dim(int head_dim, const F& f) {
  switch (head_dim) {
    case 64:
      return f(HeadDim<64>{});
    case 80:
      return f(HeadDim<80>{});
    case 96:
      return f(HeadDim<96>{});
    case 128:
      return f(HeadDim<128>{});
    case 256:
      return f(HeadDim<256>{});
    default:
      throw std::invalid_argument("CUDA attention has no kernel for head size " + std::to_string(head_dim));
  }
}

unsigned row_tiles(const AttentionParams& params, const AttentionGrid& grid, int tile_rows) {
  return static_cast<unsigned>(ceil_div(grid.rows_max * (params.heads / params.cache.kv_heads), tile_rows));
}

}  // namespace

void attend_segments(const AttentionParams& params, const AttentionGrid& grid, const SegmentPartials& partials,
                     Stream stream) {
  if (grid.ranges == 0) return;
  const auto ranges = static_cast<unsigned>(grid.ranges);
  with_head_dim(params.cache.head_dim, [&](auto dim) {
    constexpr int kDim = decltype(dim)::kValue;
    const dim3 blocks(static_cast<unsigned>(grid.segments_max),
                      row_tiles(params, grid, kTileRows) * static_cast<unsigned>(params.cache.kv_heads), ranges);
    launch(attend_segment_kernel<kDim>, {blocks, dim3(kWarpThreads), kSegmentSharedBytes<kDim>}, stream, params,
           partials);
    const dim3 rows(static_cast<unsigned>(params.heads), static_cast<unsigned>(grid.rows_max), ranges);
    launch(merge_segments_kernel<kDim>, {rows, dim3(kDim)}, stream, params, partials);
  });
}

void attend_prefill(const AttentionParams& params, const AttentionGrid& grid, Stream stream) {
  if (grid.ranges == 0) return;
  with_head_dim(params.cache.head_dim, [&](auto dim) {
    constexpr int kDim = decltype(dim)::kValue;
    constexpr unsigned kSlices = kDim / kPrefillCols<kDim>;
    const dim3 blocks(row_tiles(params, grid, kPrefillRows), static_cast<unsigned>(params.cache.kv_heads) * kSlices,
                      static_cast<unsigned>(grid.ranges));
    launch(attend_prefill_kernel<kDim>, {blocks, dim3(kPrefillThreads), kPrefillSharedBytes<kDim>}, stream, params);
  });
}

}  // namespace llmsrv::cuda
