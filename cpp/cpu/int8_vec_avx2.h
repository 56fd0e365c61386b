// Eight rows of packed integers with AVX2, FMA and F16C.
#pragma once

#include <string.h>

#include "cpp/cpu/vec_avx2.h"

namespace llmsrv::cpu::LLMSRV_ISA {
namespace {

// As Int8Vec16, of half as many rows.
struct Int8Vec8 : Vec8 {
  using I = __m256i;

  static I broadcast(int32_t x) { return _mm256_set1_epi32(x); }
  static I load_line(const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
  static I low_nibbles(I x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
  static I high_nibbles(I x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }
  static I add_fifth_bit(I x, const uint8_t* mask) {
    int32_t bits;
    memcpy(&bits, mask, sizeof(bits));
    // Each byte of the mask beside its eight bytes, of which each keeps its own bit.
    const I spread = _mm256_shuffle_epi8(
        _mm256_set1_epi32(bits), _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    const I own_bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201u));
    const I is_set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, own_bit), own_bit);
    return _mm256_or_si256(x, _mm256_and_si256(is_set, _mm256_set1_epi8(16)));
  }
  template <int kPair>
  static I add_high_pair(I x, I plane) {
    constexpr int kLeft = 4 - 2 * kPair;  // shifts of whole words: what crosses a byte is masked away
    const I moved = kLeft >= 0 ? _mm256_slli_epi16(plane, kLeft) : _mm256_srli_epi16(plane, -kLeft);
    return _mm256_or_si256(x, _mm256_and_si256(moved, _mm256_set1_epi8(0x30)));
  }

  // Products of two bytes are added in 16 bits, as many as surely fit, and then widened. Whole bytes would saturate
  // there: they are widened first.
  template <int kLargest, int kVectors, int kTokens>
  __attribute__((always_inline)) static void add_dots(const I* w, const int8_t* x, I (&sums)[kTokens]) {
    constexpr int kFitting = 32767 / (2 * 127 * kLargest);
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      if constexpr (kFitting == 0) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) sums[t] = add(sums[t], wide_dot(w[v], load_four(x + t * 32 + v * 4)));
      } else {
        I narrow = _mm256_setzero_si256();
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          narrow = _mm256_add_epi16(narrow, _mm256_maddubs_epi16(w[v], load_four(x + t * 32 + v * 4)));
          if ((v + 1) % kFitting != 0 && v + 1 != kVectors) continue;
          sums[t] = add(sums[t], _mm256_madd_epi16(narrow, _mm256_set1_epi16(1)));
          narrow = _mm256_setzero_si256();
        }
      }
    }
  }

  static I add(I a, I b) { return _mm256_add_epi32(a, b); }
  static I mul(I a, I b) { return _mm256_mullo_epi32(a, b); }
  static F mul(F a, F b) { return Vec8::mul(a, b); }
  static F add(F a, F b) { return Vec8::add(a, b); }
  static F to_float(I x) { return _mm256_cvtepi32_ps(x); }

  static F load_f16(const uint8_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static I load_u8(const uint8_t* from) { return _mm256_cvtepu8_epi32(load_bytes(from)); }
  static I load_i8(const uint8_t* from) { return _mm256_cvtepi8_epi32(load_bytes(from)); }

  static void largest_magnitudes(const float* x, ptrdiff_t stride, int count, uint32_t* bits) {
    for (int t = 0; t < count; ++t) bits[t] = largest_magnitude(x + t * stride);
  }
  static void round_to_bytes(const float* x, float factor, int8_t* q) {
    for (int i = 0; i < 32; i += 16) {
      const I low = _mm256_cvtps_epi32(mul(load(x + i), set1(factor)));
      const I high = _mm256_cvtps_epi32(mul(load(x + i + 8), set1(factor)));
      // Packing works on halves of the register: the middle two quarters change places again.
      const I words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
      const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(q + i), bytes);
    }
  }
  static void sum_halves(const int8_t* q, int count, int32_t* low, int32_t* high) {
    for (int t = 0; t < count; ++t) {
      low[t] = sum_bytes(q + t * 32);
      high[t] = sum_bytes(q + t * 32 + 16);
    }
  }

 private:
  // As Int8Vec16.
  static int32_t sum_bytes(const int8_t* q) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
    const __m128i halves = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(-128)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(halves) + _mm_extract_epi16(halves, 4) - 16 * 128;
  }
  static uint32_t largest_magnitude(const float* x) {
    I largest = magnitudes(x);
    for (int i = 8; i < 32; i += 8) largest = _mm256_max_epu32(largest, magnitudes(x + i));
    __m128i four = _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(four));
  }
  static I load_four(const int8_t* x) {
    int32_t word;
    memcpy(&word, x, sizeof(word));
    return _mm256_set1_epi32(word);
  }
  static I wide_dot(I w, I x) {
    const I even =
        _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8));
    const I odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(x, 8));
    return _mm256_add_epi32(even, odd);
  }
  static I magnitudes(const float* x) {
    return _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)), _mm256_set1_epi32(0x7fffffff));
  }
  static __m128i load_bytes(const uint8_t* from) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)); }
};

}  // namespace
}  // namespace llmsrv::cpu::LLMSRV_ISA
