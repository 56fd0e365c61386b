// Launches of kernels that do nothing but use one of Hopper's instructions (cuda/kernels/device_hopper.cuh), for tests
// that hold what it does against the manual's words. Each returns at once; errors of the launch throw.
#pragma once

#include "cuda/kernels/device_hopper.cuh"

namespace llmsrv::cuda {

// Copies one box of kSwizzleCols columns into shared memory. out: as it lies there, [box_rows * 128 bytes].
struct TriedBox {
  TileOfMatrix matrix;
  int col = 0;
  int row = 0;
};
void try_copy_box(const TriedBox& box, uint4* out, Stream stream);

constexpr int kTriedImageBytes = 32 << 10;
constexpr int kTriedProductCols = 128;

// d [64, kTriedProductCols] = a b: a [64, 16], b [16, kTriedProductCols] as `descriptor` finds it in shared memory that
// holds `image`. The descriptor's start address is `start` bytes into the image, whatever its bits say.
struct TriedProduct {
  const std::uint16_t* a = nullptr;  // bf16
  const uint4* image = nullptr;      // kTriedImageBytes
  std::uint64_t descriptor = 0;
  std::uint32_t start = 0;
  bool across = false;
  float* d = nullptr;
};
void try_product(const TriedProduct& product, Stream stream);

}  // namespace llmsrv::cuda
