// Four lanes in the compiler's own vector type: plain multiply and add on any architecture.
#pragma once

#include <stdint.h>
#include <string.h>

namespace llmsrv::cpu::LLMSRV_ISA {
namespace {

struct Vec4 {
  using F = float __attribute__((vector_size(16)));
  using I = int32_t __attribute__((vector_size(16)));
  using U = uint32_t __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;

  static F zero() { return F{}; }
  static F set1(float x) { return F{x, x, x, x}; }
  static F load(const float* from) { return load_bytes<F>(from, sizeof(F)); }
  // Lanes >= n are zero and their memory is not touched. REQUIRES: 0 < n < kLanes
  static F load_partial(const float* from, int n) { return load_bytes<F>(from, static_cast<size_t>(n) * 4); }
  static void store(float* to, F a) { memcpy(to, &a, sizeof(a)); }
  static void store_partial(float* to, F a, int n) { memcpy(to, &a, static_cast<size_t>(n) * 4); }

  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
  static F fma(F a, F b, F c) { return a * b + c; }       // a b + c
  static F fnma(F a, F b, F c) { return c - a * b; }      // c - a b
  static F max(F a, F b) { return select(a > b, a, b); }  // b when either is NaN
  static F min(F a, F b) { return select(a < b, a, b); }  // b when either is NaN
  // Lanes i and i + width combined, for half the lanes, a quarter and so on: a fixed tree.
  static float sum(F a) { return (a[0] + a[2]) + (a[1] + a[3]); }
  static float largest(F a) {
    const float even = a[0] > a[2] ? a[0] : a[2];
    const float odd = a[1] > a[3] ? a[1] : a[3];
    return even > odd ? even : odd;
  }
  static F zero_if_less(F x, F limit, F value) { return select(x < limit, F{}, value); }
  // 2^n of the integer n that stands in the low mantissa bits of `t`.
  static F power_of_two(F t) { return bits_to_float((float_to_bits(t) << 23) + 0x3f800000u); }

  // Splits words of two bf16 values into the low and the high halves, as floats.
  static void load_bf16_pairs(const uint8_t* from, F& low, F& high) {
    split(load_bytes<U>(from, sizeof(U)), low, high);
  }
  static void load_bf16_pairs_partial(const uint8_t* from, int n, F& low, F& high) {
    split(load_bytes<U>(from, static_cast<size_t>(n) * 4), low, high);
  }
  static F load_int8(const uint8_t* from) {
    int8_t bytes[kLanes];
    memcpy(bytes, from, sizeof(bytes));
    return F{static_cast<float>(bytes[0]), static_cast<float>(bytes[1]), static_cast<float>(bytes[2]),
             static_cast<float>(bytes[3])};
  }
  // Inlined by force: GCC would find that a function of its own has no effect, and drop the calls.
  __attribute__((always_inline)) static void prefetch(const uint8_t* at) { __builtin_prefetch(at); }
  // Into the second-level cache: more of these can be under way at once.
  __attribute__((always_inline)) static void prefetch_far(const uint8_t* at) { __builtin_prefetch(at, 0, 2); }

 private:
  template <typename R>
  static R load_bytes(const void* from, size_t bytes) {
    R value{};
    memcpy(&value, from, bytes);
    return value;
  }
  static U float_to_bits(F a) { return (U)a; }
  static F bits_to_float(U a) { return (F)a; }
  static F select(I mask, F a, F b) { return (F)(((I)a & mask) | ((I)b & ~mask)); }
  static void split(U words, F& low, F& high) {
    low = bits_to_float(words << 16);
    high = bits_to_float(words & 0xffff0000u);
  }
};

}  // namespace
}  // namespace llmsrv::cpu::LLMSRV_ISA
