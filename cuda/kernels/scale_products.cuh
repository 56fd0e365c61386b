// out[t, n] (+)= products[t, n] * row_scales[t] * col_scales[n] + bias[n]: what a product of fp8 rows and fp8 weights
// means, where each row and each output has its own scale. Sums of fp8 products are far from a float's limits.
//
// Work: a thread per four products. Grid: (rows, pieces of a row). Shared memory: none. Bytes moved: the products once,
// the result once, twice when it is added to. Assumes: cols is a multiple of 4, rows start at multiples of 16 bytes, of
// 8 for bf16.
#pragma once

#include "cuda/kernels/device.cuh"

namespace llmsrv::cuda {

template <typename Out>
struct ScaleProductsParams {
  const float* products = nullptr;  // [rows, cols]; row t starts at t * products_stride
  int products_stride = 0;
  const float* row_scales = nullptr;  // [rows]
  const float* col_scales = nullptr;  // [cols]
  const float* bias = nullptr;        // [cols], or none
  Out* out = nullptr;                 // [rows, cols]; row t starts at t * out_stride
  int out_stride = 0;
  int rows = 0;
  int cols = 0;
  bool adds = false;  // to what is there
};

constexpr int kScaleThreads = 128;

template <typename Out>
__global__ void __launch_bounds__(kScaleThreads) scale_products_kernel(const ScaleProductsParams<Out> p) {
  const int col = static_cast<int>(blockIdx.y * kScaleThreads + threadIdx.x) * 4;
  if (col >= p.cols) return;
  const int row = static_cast<int>(blockIdx.x);
  const float row_scale = p.row_scales[row];
  const Chunk<float> products = load_chunk(row_at(p.products, row, p.products_stride) + col);
  const Chunk<float> scales = load_chunk(p.col_scales + col);
  Out* to = row_at(p.out, row, p.out_stride) + col;
  Pack<Out, 4> out;
  if (p.adds) out = *reinterpret_cast<const Pack<Out, 4>*>(to);
  LLMSRV_UNROLL
  for (int j = 0; j < 4; ++j) {
    float value = __fmul_rn(__fmul_rn(products.values[j], row_scale), scales.values[j]);
    if (p.bias != nullptr) value = __fadd_rn(value, p.bias[col + j]);
    if (p.adds) value = __fadd_rn(value, to_float(out.values[j]));
    out.values[j] = from_float<Out>(value);
  }
  store_pack(to, out);
}

}  // namespace llmsrv::cuda
