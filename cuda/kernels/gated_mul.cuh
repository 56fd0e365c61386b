// out[t, i] = gate(in[t, i]) * in[t, cols + i], gate = silu or the tanh form of gelu.
//
// Work: a thread per chunk of 16 bytes of the result. Shared memory: none.
// Bytes moved: the input once, the result once. Assumes: cols is a multiple of 8, rows start at multiples of 16 bytes.
#pragma once

#include "cuda/kernels/device.cuh"

namespace llmsrv::cuda {

enum class Gate { kSilu, kGeluTanh };

template <typename T, typename Out = T>
struct GatedMulParams {
  const T* in = nullptr;  // [rows, 2 cols]; row r starts at r * in_stride
  int in_stride = 0;
  Out* out = nullptr;  // [rows, cols]; row r starts at r * out_stride
  int out_stride = 0;
  int rows = 0;
  int cols = 0;
};

constexpr int kGateThreads = 128;

// a / (1 + exp(-u)), where u = a for silu and 2 sqrt(2 / pi) (a + 0.044715 a^3) for gelu.
template <Gate kGate>
__device__ inline float gate(float a) {
  float u = a;
  if constexpr (kGate == Gate::kGeluTanh) u = 1.5957691216057308f * (a + 0.044715f * a * a * a);
  return a / (1.0f + expf(-u));
}

template <typename T, typename Out, Gate kGate>
__global__ void __launch_bounds__(kGateThreads) gated_mul_kernel(const GatedMulParams<T, Out> p) {
  constexpr int kCount = Chunk<T>::kCount;
  const int i = static_cast<int>(blockIdx.y * kGateThreads + threadIdx.x) * kCount;
  if (i >= p.cols) return;
  const int row = static_cast<int>(blockIdx.x);
  const T* in = row_at(p.in, row, p.in_stride);
  const Chunk<T> a = load_chunk(in + i);
  const Chunk<T> b = load_chunk(in + p.cols + i);
  Pack<Out, kCount> out;
  LLMSRV_UNROLL
  for (int j = 0; j < kCount; ++j) {
    out.values[j] = from_float<Out>(gate<kGate>(to_float(a.values[j])) * to_float(b.values[j]));
  }
  store_pack(row_at(p.out, row, p.out_stride) + i, out);
}

}  // namespace llmsrv::cuda
