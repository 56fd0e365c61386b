#include "cuda/conformance/hopper.h"

namespace llmsrv::cuda {
namespace {

__device__ unsigned char* pattern_start(unsigned char* shared) {
  return shared + (kPatternBytes - shared_address(shared) % kPatternBytes) % kPatternBytes;
}

__global__ void copy_box_kernel(const LLMSRV_GRID_CONSTANT TileMap map, int col, int row, int box_rows, uint4* out) {
#if defined(LLMSRV_FOR_HOPPER)
  LLMSRV_DYNAMIC_SHARED(shared);
  unsigned char* const tile = pattern_start(shared);
  auto* const landed = reinterpret_cast<std::uint64_t*>(tile + box_rows * 128);
  if (threadIdx.x == 0) {
    init_barrier(landed, 1);
    show_barriers();
  }
  __syncthreads();  // the barrier is there
  if (threadIdx.x == 0) {
    arrive_expecting(landed, static_cast<unsigned>(box_rows * 128));
    copy_box(tile, map, col, row, landed);
  }
  wait_for_phase(landed, 0);
  for (int chunk = static_cast<int>(threadIdx.x); chunk < box_rows * 8; chunk += kWarpThreads) {
    out[chunk] = reinterpret_cast<const uint4*>(tile)[chunk];
  }
#endif
}

template <bool kAcross>
__global__ void product_kernel(const TriedProduct p) {
#if defined(LLMSRV_FOR_HOPPER)
  LLMSRV_DYNAMIC_SHARED(shared);
  unsigned char* const tile = pattern_start(shared);
  const int thread = static_cast<int>(threadIdx.x);
  for (int chunk = thread; chunk < kTriedImageBytes / 16; chunk += kWarpGroupThreads) {
    store_for_products(tile + chunk * 16, p.image[chunk]);
  }
  fence_async_proxy();  // products see what this thread has stored
  __syncthreads();      // and what the others have
  const int lane = thread % kWarpThreads;
  const int row = thread / kWarpThreads * 16 + lane / 4;
  const int pair = lane % 4 * 2;
  const auto pair_at = [&](int y, int x) { return *reinterpret_cast<const std::uint32_t*>(p.a + y * 16 + x); };
  const std::uint32_t a[4] = {pair_at(row, pair), pair_at(row + 8, pair), pair_at(row, pair + 8),
                              pair_at(row + 8, pair + 8)};
  float d[kTriedProductCols / 8][4] = {};
  const std::uint64_t start = (shared_address(tile) + p.start) >> 4 & 0x3fff;
  fence_products(d);  // a and d are in their registers
  start_product<kAcross>(d, a, (p.descriptor & ~std::uint64_t{0x3fff}) | start, false);
  commit_products();
  wait_for_products<0>(d);  // d
  for (int block = 0; block < kTriedProductCols / 8; ++block) {
    for (int i = 0; i < 4; ++i) p.d[(row + i / 2 * 8) * kTriedProductCols + block * 8 + pair + i % 2] = d[block][i];
  }
#endif
}

}  // namespace

void try_copy_box(const TriedBox& box, uint4* out, Stream stream) {
  const int box_rows = static_cast<int>(box.matrix.box_rows);
  const std::size_t shared_bytes = static_cast<std::size_t>(kPatternBytes + box_rows * 128) + sizeof(std::uint64_t);
  launch(copy_box_kernel, {dim3(1), dim3(kWarpThreads), shared_bytes}, stream, make_tile_map(box.matrix), box.col,
         box.row, box_rows, out);
}

void try_product(const TriedProduct& product, Stream stream) {
  const Grid grid{dim3(1), dim3(kWarpGroupThreads), kPatternBytes + kTriedImageBytes};
  product.across ? launch(product_kernel<true>, grid, stream, product)
                 : launch(product_kernel<false>, grid, stream, product);
}

}  // namespace llmsrv::cuda
