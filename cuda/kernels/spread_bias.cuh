// out[t, n] (+)= bias[n]: what stands before a library's product, which is added to it. The library has no bias of our
// type.
//
// Work: a thread per element. Grid: (rows, pieces of a row). Shared memory: none. Bytes moved: the bias from L2, the
// rows once, twice when they are added to. Assumes nothing.
#pragma once

#include "cuda/kernels/device.cuh"

namespace llmsrv::cuda {

template <typename Out>
struct SpreadBiasParams {
  const float* bias = nullptr;  // [cols]
  Out* out = nullptr;           // [rows, cols]; row r starts at r * out_stride
  int out_stride = 0;
  int rows = 0;
  int cols = 0;
  bool adds = false;
};

constexpr int kBiasThreads = 256;

template <typename Out>
__global__ void __launch_bounds__(kBiasThreads) spread_bias_kernel(const SpreadBiasParams<Out> p) {
  const int col = static_cast<int>(blockIdx.y * kBiasThreads + threadIdx.x);
  if (col >= p.cols) return;
  Out* const out = row_at(p.out, static_cast<int>(blockIdx.x), p.out_stride) + col;
  *out = from_float<Out>(p.adds ? to_float(*out) + p.bias[col] : p.bias[col]);
}

}  // namespace llmsrv::cuda
