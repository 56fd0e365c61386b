// Whether products of a warp group round as those of a warp do: what promise P3 needs before prompts may use the former
// where decoding uses the latter. Nothing but the device can tell.
//
// Work: a block is a warp group. It draws operands of widely spread sizes and sums to start with, multiplies them both
// ways, by rows and by columns of a tile as attention does, and adds to `unequal` how many results differ in any bit.
// Shared memory: one tile of 32 x 64. Bytes moved: none.
#pragma once

#include "cuda/kernels/device_hopper.cuh"

namespace llmsrv::cuda {

constexpr int kComparedRows = 32;  // of the tile
constexpr std::size_t kComparedSharedBytes = kPatternBytes + kComparedRows * kSwizzleCols * sizeof(Bf16);

// 32 bits that follow from the two.
__device__ inline std::uint32_t drawn(std::uint32_t stream, std::uint32_t index) {
  std::uint32_t x = (stream * 0x9e3779b9u + index) * 0x85ebca6bu;
  x = (x ^ x >> 15) * 0xc2b2ae35u;
  x = (x ^ x >> 13) * 0x27d4eb2fu;
  return x ^ x >> 16;
}
// A float of any sign and fraction, between 2^-8 and 2^8 in size.
__device__ inline float drawn_number(std::uint32_t bits) {
  const std::uint32_t exponent = 119 + (bits >> 24) % 16;
  return __uint_as_float((bits & 0x80000000u) | exponent << 23 | (bits * 0x9e3779b9u) >> 9);
}
__device__ inline std::uint32_t drawn_pair(std::uint32_t stream, std::uint32_t index) {
  return pack_pair<Bf16>(drawn_number(drawn(stream, 2 * index)), drawn_number(drawn(stream, 2 * index + 1)));
}

// Element (row, col) of a tile as products find it.
__device__ inline std::uint32_t tile_element(const unsigned char* tile, int row, int col) {
  const int byte = (col * 2) ^ (row % 8 * 16);
  return *reinterpret_cast<const std::uint16_t*>(tile + row * 128 + byte);
}

// The columns of b are the tile's rows, or its columns when kAcross.
template <bool kAcross>
__device__ inline int count_unequal(const unsigned char* tile, std::uint32_t stream) {
  constexpr int kCols = kAcross ? kSwizzleCols : kComparedRows;
  constexpr int kSteps = (kAcross ? kComparedRows : kSwizzleCols) / 16;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  float wide[kCols / 8][4];
  float narrow[kCols / 8][4];
  std::uint32_t a[kSteps][4];
  for (std::uint32_t i = 0; i < kCols / 2; ++i) {
    wide[i / 4][i % 4] = narrow[i / 4][i % 4] = drawn_number(drawn(stream, i * kWarpGroupThreads + threadIdx.x));
  }
  for (std::uint32_t i = 0; i < kSteps * 4; ++i) {
    a[i / 4][i % 4] = drawn_pair(stream + 1, i * kWarpGroupThreads + threadIdx.x);
  }
  const auto pair_at = [&](int col, int k) {
    return kAcross ? tile_element(tile, k, col) | tile_element(tile, k + 1, col) << 16
                   : tile_element(tile, col, k) | tile_element(tile, col, k + 1) << 16;
  };
  const std::uint64_t descriptor = kAcross ? columns_of_tile(tile, 0) : rows_of_tile(tile);
  fence_products(wide);  // sums and a are in their registers
  LLMSRV_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    start_product<kAcross>(wide, a[step], further_on(descriptor, step * 16 * (kAcross ? 128 : 2)), true);
  }
  commit_products();
  wait_for_products<0>(wide);  // the sums
  int unequal = 0;
  LLMSRV_UNROLL
  for (int block = 0; block < kCols / 8; ++block) {
    LLMSRV_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int col = block * 8 + lane / 4;
      const int k = step * 16 + lane % 4 * 2;
      multiply_add<Bf16>(narrow[block], a[step], {pair_at(col, k), pair_at(col, k + 8)});
    }
    LLMSRV_UNROLL
    for (int i = 0; i < 4; ++i) unequal += __float_as_uint(wide[block][i]) != __float_as_uint(narrow[block][i]);
  }
  return unequal;
}

__global__ void __launch_bounds__(kWarpGroupThreads) compare_products_kernel(int* unequal) {
#if defined(LLMSRV_FOR_HOPPER)
  LLMSRV_DYNAMIC_SHARED(shared);
  unsigned char* const tile = shared + (kPatternBytes - shared_address(shared) % kPatternBytes) % kPatternBytes;
  const std::uint32_t stream = blockIdx.x * 8;
  for (unsigned chunk = threadIdx.x; chunk < kComparedRows * kSwizzleCols / 8; chunk += kWarpGroupThreads) {
    store_for_products(tile + chunk * 16, {drawn_pair(stream, chunk * 4), drawn_pair(stream, chunk * 4 + 1),
                                           drawn_pair(stream, chunk * 4 + 2), drawn_pair(stream, chunk * 4 + 3)});
  }
  fence_async_proxy();  // products see what this thread has stored
  __syncthreads();      // and what the others have
  const int found = count_unequal<false>(tile, stream + 1) + count_unequal<true>(tile, stream + 4);
  if (found != 0) atomicAdd(unequal, found);
#endif
}

}  // namespace llmsrv::cuda
