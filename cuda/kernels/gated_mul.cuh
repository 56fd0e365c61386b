// out[t, i] = gate(in[t, i]) * in[t, cols + i], gate = silu or the tanh form of gelu.
//
// Work: a thread per chunk of 16 bytes of the result. Shared memory: none.
// Bytes moved: the input once, the result once. Assumes: cols is a multiple of 8, rows start at multiples of 16 bytes.
#pragma once

#include "cuda/kernels/device.cuh"

namespace llmsrv::cuda {

enum class Gate { kSilu, kGeluTanh };

template <typename T>
struct GatedMulParams {
  const T* in = nullptr;  // [rows, 2 cols]
  T* out = nullptr;       // [rows, cols]
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

template <typename T, Gate kGate>
__global__ void __launch_bounds__(kGateThreads) gated_mul_kernel(const GatedMulParams<T> p) {
  constexpr int kCount = Chunk<T>::kCount;
  const int i = static_cast<int>(blockIdx.y * kGateThreads + threadIdx.x) * kCount;
  if (i >= p.cols) return;
  const std::size_t row = blockIdx.x;
  const T* in = p.in + row * 2 * static_cast<std::size_t>(p.cols);
  const Chunk<T> a = load_chunk(in + i);
  const Chunk<T> b = load_chunk(in + p.cols + i);
  Chunk<T> out;
  LLMSRV_UNROLL
  for (int j = 0; j < kCount; ++j) {
    out.values[j] = from_float<T>(gate<kGate>(to_float(a.values[j])) * to_float(b.values[j]));
  }
  store_chunk(p.out + row * static_cast<std::size_t>(p.cols) + i, out);
}

}  // namespace llmsrv::cuda
