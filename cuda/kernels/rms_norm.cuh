// x[i] * weight[i] / sqrt(mean_j(x[j]^2) + eps) of each row, alone or with the residual stream.
//
// Work: one block of kNormThreads per row; a thread takes chunks of 16 bytes, kNormThreads apart.
// Shared memory: 32 bytes. Bytes moved per row: the row once (its second reading comes from the cache), the residual
// stream once in and once out where there is one, the result once; the weights come from L2.
// Assumes: cols is a multiple of 8, rows start at multiples of 16 bytes.
#pragma once

#include "cuda/kernels/reduce.cuh"

namespace llmsrv::cuda {

enum class NormUse {
  kPlain,      // out = norm(in)
  kAddBefore,  // stream += in; out = norm(stream)
  kAddAfter,   // out += norm(in)
};

template <typename T>
struct RmsNormParams {
  const T* in = nullptr;          // [rows, cols]
  T* stream = nullptr;            // [rows, cols], kAddBefore only
  const float* weight = nullptr;  // [cols]
  T* out = nullptr;               // [rows, cols]; may be `in`
  int rows = 0;
  int cols = 0;
  float eps = 0.0f;
};

constexpr int kNormThreads = 256;

template <typename T, NormUse kUse>
__global__ void __launch_bounds__(kNormThreads) rms_norm_kernel(const RmsNormParams<T> p) {
  LLMSRV_SHARED(float, partial, kNormThreads / kWarpThreads);
  constexpr int kCount = Chunk<T>::kCount;
  const std::size_t row = static_cast<std::size_t>(blockIdx.x) * static_cast<std::size_t>(p.cols);
  const int first = static_cast<int>(threadIdx.x) * kCount;
  constexpr int kStep = kNormThreads * kCount;
  const T* source = kUse == NormUse::kAddBefore ? p.stream + row : p.in + row;

  float squares = 0.0f;
  for (int i = first; i < p.cols; i += kStep) {
    Chunk<T> x = load_chunk(p.in + row + i);
    if constexpr (kUse == NormUse::kAddBefore) {
      const Chunk<T> stream = load_chunk(p.stream + row + i);
      LLMSRV_UNROLL
      for (int j = 0; j < kCount; ++j) x.values[j] = from_float<T>(to_float(stream.values[j]) + to_float(x.values[j]));
      store_chunk(p.stream + row + i, x);
    }
    LLMSRV_UNROLL
    for (int j = 0; j < kCount; ++j) squares = __fmaf_rn(to_float(x.values[j]), to_float(x.values[j]), squares);
  }
  const float factor = 1.0f / sqrtf(block_sum(squares, partial) / static_cast<float>(p.cols) + p.eps);
  for (int i = first; i < p.cols; i += kStep) {  // a thread reads only what it wrote itself: no barrier
    Chunk<T> x = load_chunk(source + i);
    Chunk<T> out = x;
    if constexpr (kUse == NormUse::kAddAfter) out = load_chunk(p.out + row + i);
    LLMSRV_UNROLL
    for (int j = 0; j < kCount; ++j) {
      const float normed = to_float(x.values[j]) * factor * p.weight[i + j];
      out.values[j] = from_float<T>(kUse == NormUse::kAddAfter ? to_float(out.values[j]) + normed : normed);
    }
    store_chunk(p.out + row + i, out);
  }
}

}  // namespace llmsrv::cuda
