// Finds tokens of a row by their order, without sorting it: by a block of kSampleThreads, going down the digits of a
// key with a histogram per digit. Masses are integers, so that no sum depends on its order.
#pragma once

#include "cuda/kernels/device.cuh"

namespace llmsrv::cuda {

using Whole = unsigned long long;  // the 64-bit type of CUDA's atomics

constexpr int kSampleThreads = 512;
constexpr int kSampleWarps = kSampleThreads / kWarpThreads;
constexpr int kIdBits = 24;
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kIdDigits = kIdBits / kDigitBits;
constexpr int kKeyDigits = kIdDigits + 32 / kDigitBits;  // a value's bits above the id's
constexpr Whole kIdMask = (Whole{1} << kIdBits) - 1;
constexpr int kVocabMax = 1 << 19;  // so that their masses together, 2^44 each at most, have 64 bits

// What the threads of a block share.
struct SearchShared {
  Whole histograms[kSampleWarps][kDigits];  // a warp's own, so that no warp waits for another's atomics
  Whole totals[kDigits];
  Whole partial[kSampleWarps];
  Whole above;
  int digit;
  int not_finite;
};

// Keys order tokens: the larger value first, then the lower id.
__device__ inline Whole id_key(int token) { return kIdMask - static_cast<Whole>(token); }
__device__ inline Whole key_of(std::uint32_t ordered_value, int token) {
  return Whole{ordered_value} << kIdBits | id_key(token);
}
__device__ inline int token_of(Whole key) { return static_cast<int>(kIdMask - (key & kIdMask)); }

// Bits that are ordered as the floats are, both zeros being one; and the float again.
__device__ inline std::uint32_t ordered_bits(float value) {
  const std::uint32_t bits = __float_as_uint(value == 0.0f ? 0.0f : value);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ inline float value_of(Whole key) {
  const auto bits = static_cast<std::uint32_t>(key >> kIdBits);
  return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

// e^x of x <= 0, operation by operation what the core's exp_of_negative (cpp/sample/row_scan.h) computes: the same
// bits.
__device__ inline float exp_of_negative(float x) {
  constexpr float kLowest = -87.336544f;      // ln 2^-126
  constexpr float kRoundBias = 12582912.0f;   // adding it rounds to an integer in the low mantissa bits
  constexpr float kLn2High = 0.693359375f;    // n times it is exact
  constexpr float kLn2Low = -2.12194440e-4f;  // ln 2 - kLn2High
  const float clamped = x < kLowest ? kLowest : x;
  const float biased = __fadd_rn(__fmul_rn(clamped, 1.44269504f), kRoundBias);
  const float n = __fadd_rn(biased, -kRoundBias);
  const float r = __fadd_rn(__fadd_rn(clamped, -__fmul_rn(n, kLn2High)), -__fmul_rn(n, kLn2Low));
  float p = 1.0f / 5040;
  p = __fadd_rn(__fmul_rn(p, r), 1.0f / 720);
  p = __fadd_rn(__fmul_rn(p, r), 1.0f / 120);
  p = __fadd_rn(__fmul_rn(p, r), 1.0f / 24);
  p = __fadd_rn(__fmul_rn(p, r), 1.0f / 6);
  p = __fadd_rn(__fmul_rn(p, r), 0.5f);
  p = __fadd_rn(__fmul_rn(p, r), 1.0f);
  p = __fadd_rn(__fmul_rn(p, r), 1.0f);
  const float power = __uint_as_float((__float_as_uint(biased) + 127u) << 23);
  return x < kLowest ? 0.0f : __fmul_rn(p, power);
}

// A weight of at most 1 in units of 2^-44, rounded down.
constexpr double kMassUnit = 1.0 / 17592186044416.0;
__device__ inline Whole mass_of(float weight) { return static_cast<Whole>(weight * 17592186044416.0f); }

// The block's integers put together by `join`, in every thread; any order gives the same.
template <typename Join>
__device__ inline Whole block_join(Whole value, SearchShared& shared, const Join& join) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  LLMSRV_UNROLL
  for (int step = kWarpThreads / 2; step > 0; step /= 2) value = join(value, __shfl_xor_sync(kAllLanes, value, step));
  __syncthreads();  // all threads have read the parts of the join before
  if (threadIdx.x % kWarpThreads == 0) shared.partial[warp] = value;
  __syncthreads();  // every warp's part is there
  for (int i = 0; i < kSampleWarps; ++i) value = i == 0 ? shared.partial[0] : join(value, shared.partial[i]);
  return value;
}
__device__ inline Whole block_total(Whole value, SearchShared& shared) {
  return block_join(value, shared, [](Whole a, Whole b) { return a + b; });
}
__device__ inline Whole block_largest(Whole value, SearchShared& shared) {
  return block_join(value, shared, [](Whole a, Whole b) { return a > b ? a : b; });
}

// Warp 0 looks for the digit, from the highest down, at which the running total reaches `target`.
__device__ inline void find_digit(Whole target, SearchShared& shared) {
  const int lane = static_cast<int>(threadIdx.x);
  Whole above = 0;
  for (int top = kDigits - 1; top >= 0; top -= kWarpThreads) {
    Whole running = shared.totals[top - lane];
    LLMSRV_UNROLL
    for (unsigned step = 1; step < kWarpThreads; step *= 2) {
      const Whole before = __shfl_up_sync(kAllLanes, running, step);
      if (threadIdx.x >= step) running += before;
    }
    const unsigned reached = __ballot_sync(kAllLanes, above + running >= target);
    if (reached != 0) {
      const int first = __ffs(static_cast<int>(reached)) - 1;
      if (lane == first) {
        shared.digit = top - lane;
        shared.above = above + running - shared.totals[top - lane];
      }
      return;
    }
    above += __shfl_sync(kAllLanes, running, kWarpThreads - 1);
  }
}

struct Found {
  Whole key;
  Whole through;  // the measure of all tokens down to it, itself included
};

// The token at which the running measure, down from the largest key, reaches `target`. key(token) has kDigitCount
// digits; measure(token) is 0 for a token that is not there.
// REQUIRES: 1 <= target <= the measure of all tokens
template <int kDigitCount, typename Key, typename Measure>
__device__ inline Found find_key(int vocab, Whole target, const Key& key, const Measure& measure,
                                 SearchShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  Whole* histogram = shared.histograms[thread / kWarpThreads];
  Found found{0, 0};
  for (int shift = (kDigitCount - 1) * kDigitBits; shift >= 0; shift -= kDigitBits) {
    for (int digit = thread % kWarpThreads; digit < kDigits; digit += kWarpThreads) histogram[digit] = 0;
    __syncwarp();  // the warp's histogram is empty
    for (int token = thread; token < vocab; token += kSampleThreads) {
      const Whole at = key(token);
      if (at >> shift >> kDigitBits != found.key >> shift >> kDigitBits) continue;
      const Whole amount = measure(token);
      if (amount != 0) atomicAdd(&histogram[at >> shift & (kDigits - 1)], amount);
    }
    __syncthreads();  // all histograms are full
    if (thread < kDigits) {
      Whole total = 0;
      for (int warp = 0; warp < kSampleWarps; ++warp) total += shared.histograms[warp][thread];
      shared.totals[thread] = total;
    }
    __syncthreads();  // the totals are there, the histograms are free
    if (thread < kWarpThreads) find_digit(target, shared);
    __syncthreads();  // the digit is there, the totals are free
    target -= shared.above;
    found.through += shared.above;
    found.key |= static_cast<Whole>(shared.digit) << shift;
    if (shift == 0) found.through += shared.totals[shared.digit];
  }
  return found;
}

}  // namespace llmsrv::cuda
