// Eight lanes with AVX2 and FMA.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace llmsrv::cpu::LLMSRV_ISA {
namespace {

struct Vec8 {
  using F = __m256;
  static constexpr int kLanes = 8;

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F load(const float* from) { return _mm256_loadu_ps(from); }
  // Lanes >= n are zero and their memory is not touched. REQUIRES: 0 < n < kLanes
  static F load_partial(const float* from, int n) { return _mm256_maskload_ps(from, first_lanes(n)); }
  static void store(float* to, F a) { _mm256_storeu_ps(to, a); }
  static void store_partial(float* to, F a, int n) { _mm256_maskstore_ps(to, first_lanes(n), a); }

  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }    // a b + c
  static F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a b
  static F max(F a, F b) { return _mm256_max_ps(a, b); }              // b when either is NaN
  static F min(F a, F b) { return _mm256_min_ps(a, b); }              // b when either is NaN
  // Lanes i and i + width combined, for half the lanes, a quarter and so on: a fixed tree.
  static float sum(F a) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static float largest(F a) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
  static F zero_if_less(F x, F limit, F value) { return _mm256_andnot_ps(_mm256_cmp_ps(x, limit, _CMP_LT_OQ), value); }
  // 2^n of the integer n that stands in the low mantissa bits of `t`.
  static F power_of_two(F t) {
    const __m256i shifted = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(shifted, _mm256_set1_epi32(0x3f800000)));
  }

  // Splits words of two bf16 values into the low and the high halves, as floats.
  static void load_bf16_pairs(const uint8_t* from, F& low, F& high) {
    split(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)), low, high);
  }
  static void load_bf16_pairs_partial(const uint8_t* from, int n, F& low, F& high) {
    split(_mm256_maskload_epi32(reinterpret_cast<const int*>(from), first_lanes(n)), low, high);
  }
  static F load_int8(const uint8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
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
  static __m256i first_lanes(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static void split(__m256i words, F& low, F& high) {
    low = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
    high = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
};

}  // namespace
}  // namespace llmsrv::cpu::LLMSRV_ISA
