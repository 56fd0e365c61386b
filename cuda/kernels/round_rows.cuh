// out[r, i] = in[r, i] rounded to bf16: the input of a packed linear layer that has nothing to compute first.
//
// Work: a thread per four values. Grid: (rows, pieces of a row). Shared memory: none. Bytes moved: the input once, half
// as many out. Assumes: cols is a multiple of 4, rows start at multiples of 16 and 8 bytes.
#pragma once

#include "cuda/kernels/device.cuh"

namespace llmsrv::cuda {

struct RoundRowsParams {
  const float* in = nullptr;  // [rows, cols]; row r starts at r * in_stride
  int in_stride = 0;
  Bf16* out = nullptr;  // [rows, cols]; row r starts at r * out_stride
  int out_stride = 0;
  int rows = 0;
  int cols = 0;
};

constexpr int kRoundThreads = 128;

// A template, so that the header may be included by several files.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) round_rows_kernel(const RoundRowsParams p) {
  const int col = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * 4;
  if (col >= p.cols) return;
  const int row = static_cast<int>(blockIdx.x);
  const Chunk<float> in = load_chunk(row_at(p.in, row, p.in_stride) + col);
  Pack<Bf16, 4> out;
  LLMSRV_UNROLL
  for (int i = 0; i < 4; ++i) out.values[i] = from_float<Bf16>(in.values[i]);
  store_pack(row_at(p.out, row, p.out_stride) + col, out);
}

}  // namespace llmsrv::cuda
