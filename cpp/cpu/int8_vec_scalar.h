// Four rows of packed integers in plain C.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cpp/cpu/vec_scalar.h"

namespace llmsrv::cpu::LLMSRV_ISA {
namespace {

// As Int8Vec16, of a quarter as many rows. Fused multiply-adds are asked for by name: other tables have no others.
struct Int8Vec4 : Vec4 {
  using I = Vec4::U;

  static F fma(F a, F b, F c) {
    F result;
    for (int i = 0; i < kLanes; ++i) result[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return result;
  }

  static I broadcast(int32_t x) { return I{} + static_cast<uint32_t>(x); }
  static I load_line(const uint8_t* from) {
    I x;
    memcpy(&x, from, sizeof(x));
    return x;
  }
  static I low_nibbles(I x) { return x & 0x0f0f0f0fu; }
  static I high_nibbles(I x) { return x >> 4 & 0x0f0f0f0fu; }
  static I add_fifth_bit(I x, const uint8_t* mask) {
    uint8_t bytes[sizeof(I)];
    memcpy(bytes, &x, sizeof(x));
    for (int i = 0; i < static_cast<int>(sizeof(I)); ++i) {
      bytes[i] = static_cast<uint8_t>(bytes[i] | (mask[i / 8] >> i % 8 & 1) << 4);
    }
    return load_line(bytes);
  }
  template <int kPair>
  static I add_high_pair(I x, I plane) {
    return x | (plane >> (2 * kPair) & 0x03030303u) << 4;
  }

  template <int kLargest, int kVectors, int kTokens>
  static void add_dots(const I* w, const int8_t* x, I (&sums)[kTokens]) {
    for (int v = 0; v < kVectors; ++v) {
      uint8_t bytes[sizeof(I)];
      memcpy(bytes, w + v, sizeof(I));
      for (int t = 0; t < kTokens; ++t) {
        for (int i = 0; i < static_cast<int>(sizeof(I)); ++i) {
          sums[t][i / 4] += static_cast<uint32_t>(bytes[i] * x[t * 32 + v * 4 + i % 4]);
        }
      }
    }
  }

  static I add(I a, I b) { return a + b; }
  static I mul(I a, I b) { return a * b; }
  static F mul(F a, F b) { return Vec4::mul(a, b); }
  static F add(F a, F b) { return Vec4::add(a, b); }
  static F to_float(I x) { return __builtin_convertvector((Vec4::I)x, F); }

  static F load_f16(const uint8_t* from) {
    F result;
    for (int i = 0; i < kLanes; ++i) {
      uint16_t half;
      memcpy(&half, from + 2 * i, sizeof(half));
      result[i] = f16_value(half);
    }
    return result;
  }
  static I load_u8(const uint8_t* from) { return I{from[0], from[1], from[2], from[3]}; }
  static I load_i8(const uint8_t* from) {
    I result;
    for (int i = 0; i < kLanes; ++i) result[i] = static_cast<uint32_t>(static_cast<int8_t>(from[i]));
    return result;
  }

  static void largest_magnitudes(const float* x, ptrdiff_t stride, int count, uint32_t* bits) {
    for (int t = 0; t < count; ++t) bits[t] = largest_magnitude(x + t * stride);
  }
  static void round_to_bytes(const float* x, float factor, int8_t* q) {
    for (int i = 0; i < 32; ++i) {
      // 1.5 * 2^23: adding it rounds to an integer, to nearest even.
      const float biased = x[i] * factor + 12582912.0f;
      q[i] = static_cast<int8_t>(biased - 12582912.0f);
    }
  }
  static void sum_halves(const int8_t* q, int count, int32_t* low, int32_t* high) {
    for (int t = 0; t < count; ++t) {
      low[t] = high[t] = 0;
      for (int i = 0; i < 16; ++i) {
        low[t] += q[t * 32 + i];
        high[t] += q[t * 32 + 16 + i];
      }
    }
  }

 private:
  static uint32_t largest_magnitude(const float* x) {
    uint32_t largest = 0;
    for (int i = 0; i < 32; ++i) {
      uint32_t bits;
      memcpy(&bits, x + i, sizeof(bits));
      bits &= 0x7fffffffu;
      largest = bits > largest ? bits : largest;
    }
    return largest;
  }
  // As f16_to_float of base/float16.h, which a kernel file may not include.
  static float f16_value(uint16_t half) {
    const uint32_t sign = (half & 0x8000u) << 16;
    const uint32_t magnitude = half & 0x7fffu;
    if (magnitude < 0x400u) {  // subnormal: magnitude * 2^-24
      const float value = static_cast<float>(magnitude) * 0x1p-24f;
      return sign != 0 ? -value : value;
    }
    const uint32_t bits = magnitude >= 0x7c00u ? sign | 0x7f800000u | (magnitude & 0x3ffu) << 13
                                               : sign | ((magnitude << 13) + 0x38000000u);
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
  }
};

}  // namespace
}  // namespace llmsrv::cpu::LLMSRV_ISA
