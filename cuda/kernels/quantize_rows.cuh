// Rows as e4m3 with a scale each, max|x| / 448: in[r, i] is about out[r, i] * scales[r]. What products of fp8 take, of
// inputs and of weights alike. A row's bits follow from that row alone.
//
// Work: one block of kQuantizeThreads per row; a thread takes 8 elements at a time, kQuantizeThreads apart. Shared
// memory: 32 bytes. Bytes moved per row: the row once (its second reading comes from the cache), a byte per element
// out. Assumes: cols is a multiple of 8; rows start at multiples of 16 bytes, results of 8. A NaN or an infinity makes
// the row's scale NaN, and so all of its products; see scale_for().
#pragma once

#include "cuda/kernels/kv_types.cuh"
#include "cuda/kernels/reduce.cuh"

namespace llmsrv::cuda {

template <typename T>
struct QuantizeRowsParams {
  const T* in = nullptr;  // [rows, cols]; row r starts at r * in_stride
  int in_stride = 0;
  Fp8* out = nullptr;  // [rows, cols]; row r starts at r * out_stride
  int out_stride = 0;
  float* scales = nullptr;  // [rows]
  int rows = 0;
  int cols = 0;
};

constexpr int kQuantizeThreads = 256;
constexpr int kQuantizeCount = 8;  // elements at a time

// Calls f(i, x) for each 8 elements x of a row, from i on, that are this thread's.
template <typename T, typename F>
__device__ void for_each_eight(const T* row, int cols, const F& f) {
  constexpr int kChunks = kQuantizeCount / Chunk<T>::kCount;
  for (int i = static_cast<int>(threadIdx.x) * kQuantizeCount; i < cols; i += kQuantizeThreads * kQuantizeCount) {
    Chunk<T> x[kChunks];
    LLMSRV_UNROLL
    for (int j = 0; j < kChunks; ++j) x[j] = load_chunk(row + i + j * Chunk<T>::kCount);
    float values[kQuantizeCount];
    LLMSRV_UNROLL
    for (int j = 0; j < kQuantizeCount; ++j) {
      values[j] = to_float(x[j / Chunk<T>::kCount].values[j % Chunk<T>::kCount]);
    }
    f(i, values);
  }
}

template <typename T>
__global__ void __launch_bounds__(kQuantizeThreads) quantize_rows_kernel(const QuantizeRowsParams<T> p) {
  LLMSRV_SHARED(std::uint32_t, partial, kQuantizeThreads / kWarpThreads);
  const int row = static_cast<int>(blockIdx.x);
  const T* in = row_at(p.in, row, p.in_stride);
  Fp8* to = row_at(p.out, row, p.out_stride);

  std::uint32_t largest = 0;
  for_each_eight(in, p.cols, [&](int, const float (&x)[kQuantizeCount]) {
    LLMSRV_UNROLL
    for (int j = 0; j < kQuantizeCount; ++j) largest = max(largest, __float_as_uint(x[j]) & 0x7fffffffu);
  });
  const Scale scale = scale_for<Fp8>(block_max(largest, partial));
  for_each_eight(in, p.cols, [&](int i, const float (&x)[kQuantizeCount]) {
    Pack<Fp8, kQuantizeCount> out;
    LLMSRV_UNROLL
    for (int j = 0; j < kQuantizeCount; ++j) out.values[j] = narrow<Fp8>(__fmul_rn(x[j], scale.inverse));
    store_pack(to + i, out);
  });
  if (threadIdx.x == 0) p.scales[row] = scale.scale;
}

}  // namespace llmsrv::cuda
