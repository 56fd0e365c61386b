// x[i] * weight[i] / sqrt(mean_j(x[j]^2) + eps) of each row, alone or with the residual stream.
//
// Work: one block of kNormThreads per row; a thread takes chunks of 16 bytes, kNormThreads apart.
// Shared memory: 32 bytes. Bytes moved per row: the row once (its second reading comes from the cache), the residual
// stream once in and once out where there is one, the result once; the weights come from L2.
// Assumes: cols is a multiple of 8, rows start at multiples of 16 bytes. Only kPlain may round: Out is T elsewhere.
#pragma once

#include "cuda/kernels/reduce.cuh"

namespace llmsrv::cuda {

enum class NormUse {
  kPlain,      // out = norm(in)
  kAddBefore,  // stream += in; out = norm(stream)
  kAddAfter,   // out += norm(in)
};

template <typename T, typename Out = T>
struct RmsNormParams {
  const T* in = nullptr;  // [rows, cols]; row r starts at r * in_stride
  int in_stride = 0;
  T* stream = nullptr;            // as `in`; kAddBefore only
  const float* weight = nullptr;  // [cols]
  Out* out = nullptr;             // [rows, cols]; row r starts at r * out_stride; may be `in`
  int out_stride = 0;
  int rows = 0;
  int cols = 0;
  float eps = 0.0f;
};

constexpr int kNormThreads = 256;

template <typename T, typename Out, NormUse kUse>
__global__ void __launch_bounds__(kNormThreads) rms_norm_kernel(const RmsNormParams<T, Out> p) {
  LLMSRV_SHARED(float, partial, kNormThreads / kWarpThreads);
  constexpr int kCount = Chunk<T>::kCount;
  const int row = static_cast<int>(blockIdx.x);
  const int first = static_cast<int>(threadIdx.x) * kCount;
  constexpr int kStep = kNormThreads * kCount;
  const T* in = row_at(p.in, row, p.in_stride);
  T* stream = kUse == NormUse::kAddBefore ? row_at(p.stream, row, p.in_stride) : nullptr;
  Out* to = row_at(p.out, row, p.out_stride);

  float squares = 0.0f;
  for (int i = first; i < p.cols; i += kStep) {
    Chunk<T> x = load_chunk(in + i);
    if constexpr (kUse == NormUse::kAddBefore) {
      const Chunk<T> before = load_chunk(stream + i);
      LLMSRV_UNROLL
      for (int j = 0; j < kCount; ++j) x.values[j] = from_float<T>(to_float(before.values[j]) + to_float(x.values[j]));
      store_chunk(stream + i, x);
    }
    LLMSRV_UNROLL
    for (int j = 0; j < kCount; ++j) squares = __fmaf_rn(to_float(x.values[j]), to_float(x.values[j]), squares);
  }
  const float factor = 1.0f / sqrtf(block_sum(squares, partial) / static_cast<float>(p.cols) + p.eps);
  for (int i = first; i < p.cols; i += kStep) {  // a thread reads only what it wrote itself: no barrier
    const Chunk<T> x = load_chunk((kUse == NormUse::kAddBefore ? stream : in) + i);
    Pack<Out, kCount> out;
    if constexpr (kUse == NormUse::kAddAfter) out = *reinterpret_cast<const Pack<Out, kCount>*>(to + i);
    LLMSRV_UNROLL
    for (int j = 0; j < kCount; ++j) {
      const float normed = to_float(x.values[j]) * factor * p.weight[i + j];
      out.values[j] = from_float<Out>(kUse == NormUse::kAddAfter ? to_float(out.values[j]) + normed : normed);
    }
    store_pack(to + i, out);
  }
}

}  // namespace llmsrv::cuda
