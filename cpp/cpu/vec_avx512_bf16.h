// The vectors of AVX2 and AVX-512 with dot products of bf16 pairs (VDPBF16PS). A word is two bf16 values.
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "cpp/cpu/vec_avx2.h"
#include "cpp/cpu/vec_avx512.h"

namespace llmsrv::cpu::LLMSRV_ISA {
namespace {

struct Vec8Dots : Vec8 {
  using Words = __m256i;

  static Words load_words(const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
  static Words set1_word(const uint8_t* from) {
    int32_t word;
    memcpy(&word, from, sizeof(word));
    return _mm256_set1_epi32(word);
  }
  // sum + (high halves of a and b multiplied), then + (low halves multiplied), each rounded.
  static F dot(F sum, Words a, Words b) { return _mm256_dpbf16_ps(sum, (__m256bh)a, (__m256bh)b); }
};

struct Vec16Dots : Vec16 {
  using Words = __m512i;

  static Words load_words(const uint8_t* from) { return _mm512_loadu_si512(from); }
  // Words >= n are zero and their memory is not touched. REQUIRES: 0 < n < kLanes
  static Words load_words_partial(const uint8_t* from, int n) {
    return _mm512_maskz_loadu_epi32(static_cast<__mmask16>((1u << n) - 1u), from);
  }
  static Words set1_word(const uint8_t* from) {
    int32_t word;
    memcpy(&word, from, sizeof(word));
    return _mm512_set1_epi32(word);
  }
  static Words low_halves(Words a) { return _mm512_and_si512(a, _mm512_set1_epi32(0xffff)); }
  static Words high_halves(Words a) { return _mm512_andnot_si512(_mm512_set1_epi32(0xffff), a); }
  static F dot(F sum, Words a, Words b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

  // Eight words: lanes 2i and 2i + 1, rounded to nearest even.
  static Vec8Dots::Words round_to_words(F a) { return (__m256i)_mm512_cvtneps_pbh(a); }
  static void store_words(uint8_t* to, Vec8Dots::Words a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), a); }
};

}  // namespace
}  // namespace llmsrv::cpu::LLMSRV_ISA
