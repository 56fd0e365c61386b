// out[t, :] = scale * table[ids[t], :]: an embedding of plain rows, and with scale 1 the rows of a step whose logits
// are wanted.
//
// Work: a thread per chunk of 16 bytes of the result. Shared memory: none. Bytes moved: the result's bytes in and out.
// Assumes: cols is a multiple of 8, rows start at multiples of 16 bytes; ids are inside the table (checked by the
// core).
#pragma once

#include "cuda/kernels/device.cuh"

namespace llmsrv::cuda {

template <typename T>
struct GatherRowsParams {
  const T* table = nullptr;  // [*, cols]; row r starts at r * table_stride
  int table_stride = 0;
  const std::int32_t* ids = nullptr;  // [rows]
  T* out = nullptr;                   // [rows, cols]; row r starts at r * out_stride
  int out_stride = 0;
  int rows = 0;
  int cols = 0;
  float scale = 1.0f;
};

constexpr int kGatherThreads = 128;

template <typename T>
__global__ void __launch_bounds__(kGatherThreads) gather_rows_kernel(const GatherRowsParams<T> p) {
  const int i = static_cast<int>(blockIdx.y * kGatherThreads + threadIdx.x) * Chunk<T>::kCount;
  if (i >= p.cols) return;
  Chunk<T> chunk = load_chunk(row_at(p.table, p.ids[blockIdx.x], p.table_stride) + i);
  LLMSRV_UNROLL
  for (int j = 0; j < Chunk<T>::kCount; ++j) {
    chunk.values[j] = from_float<T>(p.scale * to_float(chunk.values[j]));
  }
  store_chunk(row_at(p.out, static_cast<int>(blockIdx.x), p.out_stride) + i, chunk);
}

}  // namespace llmsrv::cuda
