// The one-byte types of a cache: what a float becomes, what it means, and how it becomes an operand of tensor cores:
// exactly, with integer instructions that every device has, so that all of them compute the same.
// Each stands for itself times a scale of its token and head; see KvLayout.
#pragma once

#include "cuda/kernels/device.cuh"

namespace llmsrv::cuda {

struct Fp8 {  // e4m3: a sign, 4 bits of exponent, 3 of fraction
  std::uint8_t bits;
  static constexpr float kLargest = 448.0f;
};
struct Int8 {
  std::int8_t value;
  static constexpr float kLargest = 127.0f;
};

template <typename T>
constexpr bool kIsScaled = sizeof(T) == 1;

// Places of an e4m3 number are those of a float that is 2^120 times smaller.
__device__ __forceinline__ float to_float(Fp8 value) {
  const std::uint32_t bits = value.bits;
  return __uint_as_float((bits & 0x80u) << 24 | (bits & 0x7fu) << 20) * 0x1p120f;
}
__device__ __forceinline__ float to_float(Int8 value) { return static_cast<float>(value.value); }

// Nearest, ties to even. REQUIRES: |value| rounds to T::kLargest at most
template <typename T>
__device__ __forceinline__ T narrow(float value) {
  if constexpr (std::is_same_v<T, Int8>) {
    // Adding 1.5 * 2^23 leaves an integer in the low bits.
    return {static_cast<std::int8_t>(__float_as_uint(value + 12582912.0f) & 0xffu)};
  } else {
    const std::uint32_t sign = __float_as_uint(value) >> 24 & 0x80u;
    const std::uint32_t magnitude = __float_as_uint(value) & 0x7fffffffu;
    // Below 2^-6, multiples of 2^-9: what an addition to 2^14 rounds to.
    const std::uint32_t rounded = magnitude < 0x3c800000u
                                      ? __float_as_uint(__uint_as_float(magnitude) + 0x1p14f) - 0x46800000u
                                      : ((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3);
    return {static_cast<std::uint8_t>(sign | rounded)};
  }
}

// The numbers in bytes 1 and 3 of `bytes` as two of T, Bf16 or Half, the lower one in the low half.
template <typename Kv, typename T>
__device__ __forceinline__ std::uint32_t widen_pair(std::uint32_t bytes) {
  constexpr bool kToHalf = std::is_same_v<T, Half>;
  const std::uint32_t sign = bytes & 0x80008000u;
  const std::uint32_t low = bytes & 0x7f007f00u;
  if constexpr (std::is_same_v<Kv, Fp8>) {  // a T that is 2^8 or 2^120 times smaller
    constexpr std::uint32_t kFactors = kToHalf ? 0x5c005c00u : 0x7b807b80u;
    return multiply_pairs<T>(sign | low >> (kToHalf ? 1 : 4), kFactors);
  } else {  // 128 + (value mod 128), less 128 or, of a negative one, 256
    constexpr std::uint32_t k128 = kToHalf ? 0x58005800u : 0x43004300u;
    constexpr int kShift = kToHalf ? 5 : 8;
    return subtract_pairs<T>(k128 | low >> kShift, k128 | sign >> kShift);
  }
}

// The scale that takes the largest of numbers to T::kLargest, and its inverse. Zeros where that is too small for a
// float to invert; a NaN or an infinity makes the scale NaN. `largest`: the bits of the largest without its sign, for
// floats are ordered as these are, infinity and NaN last.
struct Scale {
  float scale;
  float inverse;
};
template <typename T>
__device__ __forceinline__ Scale scale_for(std::uint32_t largest) {
  if (largest >= 0x7f800000u) return {__uint_as_float(0x7fc00000u), 0.0f};
  const float value = __uint_as_float(largest);
  if (value < 0x1p-100f) return {0.0f, 0.0f};
  return {value / T::kLargest, T::kLargest / value};
}

}  // namespace llmsrv::cuda
