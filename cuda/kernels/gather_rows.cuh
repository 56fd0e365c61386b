// out[t, :] = scale * table[ids[t], :]: the embedding, and with scale 1 the rows of a step whose logits are wanted.
//
// Work: a thread per chunk of 16 bytes of the result. Shared memory: none. Bytes moved: the result's bytes in and out.
// Assumes: cols is a multiple of 8, rows start at multiples of 16 bytes; ids are inside the table (checked by the
// core).
#pragma once

#include "cuda/kernels/device.cuh"

namespace llmsrv::cuda {

template <typename T>
struct GatherRowsParams {
  const T* table = nullptr;           // [*, cols]
  const std::int32_t* ids = nullptr;  // [rows]
  T* out = nullptr;                   // [rows, cols]
  int rows = 0;
  int cols = 0;
  float scale = 1.0f;
};

constexpr int kGatherThreads = 128;

template <typename T>
__global__ void __launch_bounds__(kGatherThreads) gather_rows_kernel(const GatherRowsParams<T> p) {
  const int i = static_cast<int>(blockIdx.y * kGatherThreads + threadIdx.x) * Chunk<T>::kCount;
  if (i >= p.cols) return;
  const auto cols = static_cast<std::size_t>(p.cols);
  Chunk<T> chunk = load_chunk(p.table + static_cast<std::size_t>(p.ids[blockIdx.x]) * cols + i);
  LLMSRV_UNROLL
  for (int j = 0; j < Chunk<T>::kCount; ++j) {
    chunk.values[j] = from_float<T>(p.scale * to_float(chunk.values[j]));
  }
  store_chunk(p.out + static_cast<std::size_t>(blockIdx.x) * cols + i, chunk);
}

}  // namespace llmsrv::cuda
