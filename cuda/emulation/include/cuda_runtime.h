// CUDA's names for host compilers, as far as the kernels use them. Found in place of the toolkit's <cuda_runtime.h> by
// the emulated build, so that a kernel's source is the same in both.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "cuda/emulation/emulator.h"
#include "cuda/emulation/race.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)

#define threadIdx (::llmsrv::emulation::context->current->index)
#define blockIdx (::llmsrv::emulation::context->block_index)
#define blockDim (::llmsrv::emulation::context->block)
#define gridDim (::llmsrv::emulation::context->grid)

using cudaStream_t = void*;

#define LLMSRV_HERE const ::llmsrv::emulation::Location& location = ::llmsrv::emulation::Location::current()

inline void __syncthreads(LLMSRV_HERE) { llmsrv::emulation::block_barrier(location); }
inline void __syncwarp(unsigned mask = 0xffffffffu, LLMSRV_HERE) { llmsrv::emulation::warp_barrier(mask, location); }

namespace llmsrv::emulation {

template <typename T>
T shuffle(unsigned mask, T value, int source, const Location& location) {
  unsigned arrived;
  const Slot* slots = exchange(mask, Collective::kShuffle, &value, sizeof value, &arrived, location);
  if (!(arrived >> source & 1)) fail("shuffle reads lane " + std::to_string(source) + ", which is not there", location);
  T result;
  std::memcpy(&result, slots[source].bytes, sizeof result);
  return result;
}

// Fibers are never preempted, so that a plain read and write is atomic.
template <typename T, typename F>
LLMSRV_NOT_INSTRUMENTED T read_modify_write(T* at, const F& change) {
  note_atomic(at, sizeof(T));
  const T before = *at;
  *at = change(before);
  return before;
}

}  // namespace llmsrv::emulation

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, LLMSRV_HERE) {
  const int lane = static_cast<int>(llmsrv::emulation::context->current->lane);
  return llmsrv::emulation::shuffle(mask, value, lane ^ lane_mask, location);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, LLMSRV_HERE) {
  return llmsrv::emulation::shuffle(mask, value, lane & 31, location);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, LLMSRV_HERE) {
  const unsigned lane = llmsrv::emulation::context->current->lane;
  return llmsrv::emulation::shuffle(mask, value, static_cast<int>(lane >= delta ? lane - delta : lane), location);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, LLMSRV_HERE) {
  unsigned arrived;
  const llmsrv::emulation::Slot* slots = llmsrv::emulation::exchange(mask, llmsrv::emulation::Collective::kVote,
                                                                     &predicate, sizeof predicate, &arrived, location);
  unsigned result = 0;
  for (int lane = 0; lane < 32; ++lane) {
    int vote = 0;
    if (arrived >> lane & 1) std::memcpy(&vote, slots[lane].bytes, sizeof vote);
    result |= static_cast<unsigned>(vote != 0) << lane;
  }
  return result;
}

template <typename T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  return llmsrv::emulation::read_modify_write(at, [&](T before) { return static_cast<T>(before + value); });
}
template <typename T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  return llmsrv::emulation::read_modify_write(at, [&](T before) { return before < value ? value : before; });
}

template <typename T>
T atomicOr(T* at, std::type_identity_t<T> value) {
  return llmsrv::emulation::read_modify_write(at, [&](T before) { return before | value; });
}

inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(high) << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return result;
}
inline int __ffs(int value) { return value == 0 ? 0 : std::countr_zero(static_cast<unsigned>(value)) + 1; }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned value) { return std::bit_cast<float>(value); }
using std::isfinite;
using std::max;
using std::min;
