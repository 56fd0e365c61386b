// Sixteen lanes with AVX-512 (F, BW, VL, DQ).
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace llmsrv::cpu::LLMSRV_ISA {
namespace {

struct Vec16 {
  using F = __m512;
  static constexpr int kLanes = 16;

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* from) { return _mm512_loadu_ps(from); }
  // Lanes >= n are zero and their memory is not touched. REQUIRES: 0 < n < kLanes
  static F load_partial(const float* from, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), from); }
  static void store(float* to, F a) { _mm512_storeu_ps(to, a); }
  static void store_partial(float* to, F a, int n) { _mm512_mask_storeu_ps(to, first_lanes(n), a); }

  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }    // a b + c
  static F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b
  static F max(F a, F b) { return _mm512_max_ps(a, b); }              // b when either is NaN
  static F min(F a, F b) { return _mm512_min_ps(a, b); }              // b when either is NaN
  // Lanes i and i + width combined, for half the lanes, a quarter and so on: a fixed tree.
  static float sum(F a) { return _mm512_reduce_add_ps(a); }
  static float largest(F a) { return _mm512_reduce_max_ps(a); }
  static F zero_if_less(F x, F limit, F value) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), value);
  }
  // 2^n of the integer n that stands in the low mantissa bits of `t`.
  static F power_of_two(F t) {
    const __m512i shifted = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(shifted, _mm512_set1_epi32(0x3f800000)));
  }

  // Splits words of two bf16 values into the low and the high halves, as floats.
  static void load_bf16_pairs(const uint8_t* from, F& low, F& high) { split(_mm512_loadu_si512(from), low, high); }
  static void load_bf16_pairs_partial(const uint8_t* from, int n, F& low, F& high) {
    split(_mm512_maskz_loadu_epi32(first_lanes(n), from), low, high);
  }
  static F load_int8(const uint8_t* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
  // Inlined by force: GCC would find that a function of its own has no effect, and drop the calls.
  __attribute__((always_inline)) static void prefetch(const uint8_t* at) {
    _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0);
  }
  // Into the second-level cache: more of these can be under way at once.
  __attribute__((always_inline)) static void prefetch_far(const uint8_t* at) {
    _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1);
  }

 private:
  static __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static void split(__m512i words, F& low, F& high) {
    low = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
    high = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
};

}  // namespace
}  // namespace llmsrv::cpu::LLMSRV_ISA
