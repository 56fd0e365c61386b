// Sixteen rows of packed integers with AVX-512 VNNI and GFNI.
#pragma once

#include "cpp/cpu/vec_avx512.h"

namespace llmsrv::cpu::LLMSRV_ISA {
namespace {

// An integer vector (I) holds four bytes, or one int32, of each of kLanes rows.
struct Int8Vec16 : Vec16 {
  using I = __m512i;

  static I broadcast(int32_t x) { return _mm512_set1_epi32(x); }
  static I load_line(const uint8_t* from) { return _mm512_loadu_si512(from); }
  static I low_nibbles(I x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
  static I high_nibbles(I x) { return _mm512_gf2p8affine_epi64_epi8(x, _mm512_set1_epi64(0x1020408000000000), 0); }
  // Adds 16 to the bytes whose bit is set. `mask`: one bit per byte.
  static I add_fifth_bit(I x, const uint8_t* mask) {
    return _mm512_mask_add_epi8(x, _load_mask64(reinterpret_cast<__mmask64*>(const_cast<uint8_t*>(mask))), x,
                                _mm512_set1_epi8(16));
  }
  // Bits 2 kPair and 2 kPair + 1 of each byte of `plane` become bits 4 and 5 of x.
  template <int kPair>
  static I add_high_pair(I x, I plane) {
    // A row of the matrix tells which bit of the source a bit of the result is; the first row stands in the top byte.
    constexpr long long kMatrix = (1LL << (24 + 2 * kPair)) | (1LL << (16 + 2 * kPair + 1));
    return _mm512_or_si512(x, _mm512_gf2p8affine_epi64_epi8(plane, _mm512_set1_epi64(kMatrix), 0));
  }

  // sums[t] += sum over v and b of w[v] byte b * x[32 t + 4 v + b], exactly; kLargest bounds the unsigned weights.
  // Vectors are the outer loop: the chains of several tokens hide each other's latency.
  template <int kLargest, int kVectors, int kTokens>
  __attribute__((always_inline)) static void add_dots(const I* w, const int8_t* x, I (&sums)[kTokens]) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) add_dot(sums[t], w[v], x + t * 32 + v * 4);
    }
  }

  static I add(I a, I b) { return _mm512_add_epi32(a, b); }
  static I mul(I a, I b) { return _mm512_mullo_epi32(a, b); }
  static F mul(F a, F b) { return Vec16::mul(a, b); }
  static F add(F a, F b) { return Vec16::add(a, b); }
  static F to_float(I x) { return _mm512_cvtepi32_ps(x); }

  // One value per row.
  static F load_f16(const uint8_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static I load_u8(const uint8_t* from) { return _mm512_cvtepu8_epi32(load_bytes(from)); }
  static I load_i8(const uint8_t* from) { return _mm512_cvtepi8_epi32(load_bytes(from)); }

  // bits[t] = those of the largest |x[t * stride + i]|, i < 32. As integers, infinities follow the numbers and NaNs the
  // infinities. REQUIRES: count <= 16
  static void largest_magnitudes(const float* x, ptrdiff_t stride, int count, uint32_t* bits) {
    if (count < 16) {
      for (int t = 0; t < count; ++t) bits[t] = _mm512_reduce_max_epu32(magnitudes(x + t * stride));
      return;
    }
    I four[4];  // element j of quarter i of vector v: the largest of quarter i of row 4 v + j
    for (int v = 0; v < 4; ++v, x += 4 * stride) {
      const F two = _mm512_castsi512_ps(larger_of_halves(magnitudes(x), magnitudes(x + stride)));
      const F next = _mm512_castsi512_ps(larger_of_halves(magnitudes(x + 2 * stride), magnitudes(x + 3 * stride)));
      four[v] = _mm512_max_epu32(_mm512_castps_si512(_mm512_shuffle_ps(two, next, 0x88)),
                                 _mm512_castps_si512(_mm512_shuffle_ps(two, next, 0xdd)));
    }
    const I low = larger_of_quarters(four[0], four[1]);
    const I high = larger_of_quarters(four[2], four[3]);
    _mm512_storeu_si512(bits, larger_of_quarters(low, high));
  }
  // q[i] = x[i] * factor rounded to nearest even, for 32 values. REQUIRES: |x[i] * factor| < 128
  static void round_to_bytes(const float* x, float factor, int8_t* q) {
    for (int i = 0; i < 32; i += 16) {
      const I rounded = _mm512_cvtps_epi32(mul(load(x + i), set1(factor)));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(q + i), _mm512_cvtepi32_epi8(rounded));
    }
  }
  // low[t] = sum of q[32 t + i], i < 16; high[t]: of the 16 values behind them.
  static void sum_halves(const int8_t* q, int count, int32_t* low, int32_t* high) {
    if (count < 16) {
      for (int t = 0; t < count; ++t) {
        low[t] = sum_bytes(q + t * 32);
        high[t] = sum_bytes(q + t * 32 + 16);
      }
      return;
    }
    // Quarters of a register: low and high half of token 2 v, then of 2 v + 1.
    const I first = sums_of_quarters(q);          // element v of each
    const I last = sums_of_quarters(q + 8 * 32);  // element v - 4
    const I low_order = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27);
    const I high_order = _mm512_add_epi32(low_order, _mm512_set1_epi32(4));
    _mm512_storeu_si512(low, _mm512_permutex2var_epi32(first, low_order, last));
    _mm512_storeu_si512(high, _mm512_permutex2var_epi32(first, high_order, last));
  }

 private:
  static I magnitudes(const float* x) {
    const I mask = _mm512_set1_epi32(0x7fffffff);
    return _mm512_max_epu32(_mm512_and_si512(_mm512_loadu_si512(x), mask),
                            _mm512_and_si512(_mm512_loadu_si512(x + 16), mask));
  }
  static I larger_of_halves(I a, I b) {
    return _mm512_max_epu32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  }
  static I larger_of_quarters(I a, I b) {
    return _mm512_max_epu32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
  }

  // Of 16 bytes; of eight unsigned ones, which are 128 too large each, it takes one instruction.
  static int32_t sum_bytes(const int8_t* q) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
    const __m128i halves = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(-128)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(halves) + _mm_extract_epi16(halves, 4) - 16 * 128;
  }
  // Element v of quarter i: the sum of quarter i of the v-th 64 bytes, of four.
  static I sums_of_quarters(const int8_t* q) {
    const auto fours = [&](int v) {  // sums of four bytes
      return _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_loadu_si512(q + 64 * v));
    };
    const I pairs = sums_of_neighbours(fours(0), fours(1));
    return sums_of_neighbours(pairs, sums_of_neighbours(fours(2), fours(3)));
  }
  // In each quarter: the two sums of pairs of a, then those of b.
  static I sums_of_neighbours(I a, I b) {
    const F even = _mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0x88);
    const F odd = _mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0xdd);
    return _mm512_add_epi32(_mm512_castps_si512(even), _mm512_castps_si512(odd));
  }

  using Word __attribute__((may_alias)) = int32_t;
  // By hand, since GCC loads the broadcast into a register first, which costs 4 %.
  static void add_dot(I& sum, I w, const int8_t* x) {
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*reinterpret_cast<const Word*>(x)));
  }
  static __m128i load_bytes(const uint8_t* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
};

}  // namespace
}  // namespace llmsrv::cpu::LLMSRV_ISA
