// Four rows of packed integers with the dot products of Arm's NEON (FEAT_DotProd).
#pragma once

#include <arm_neon.h>

#include "cpp/cpu/int8_vec_scalar.h"

namespace llmsrv::cpu::LLMSRV_ISA {
namespace {

// As Int8Vec4, with one instruction for 16 products.
struct Int8VecNeon : Int8Vec4 {
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }

  // The instruction multiplies signed bytes. Weights of 8 bits are 128 too large for that: Σ q x = Σ (q - 128) x +
  // 2 Σ 64 x.
  template <int kLargest, int kVectors, int kTokens>
  __attribute__((always_inline)) static void add_dots(const I* w, const int8_t* x, I (&sums)[kTokens]) {
    static_assert(kVectors % 4 == 0);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; v += 4) {
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) {
        const int8x16_t four = vld1q_s8(x + t * 32 + v * 4);
        int32x4_t sum = (int32x4_t)sums[t];
        sum = vdotq_laneq_s32(sum, signed_bytes<kLargest>(w[v]), four, 0);
        sum = vdotq_laneq_s32(sum, signed_bytes<kLargest>(w[v + 1]), four, 1);
        sum = vdotq_laneq_s32(sum, signed_bytes<kLargest>(w[v + 2]), four, 2);
        sum = vdotq_laneq_s32(sum, signed_bytes<kLargest>(w[v + 3]), four, 3);
        if constexpr (kLargest > 127) {
          const int32x4_t quarters = vdotq_s32(vdupq_n_s32(0), vdupq_n_s8(64), four);
          sum = vaddq_s32(sum, vdupq_n_s32(2 * vaddvq_s32(quarters)));
        }
        sums[t] = (I)sum;
      }
    }
  }

  static F load_f16(const uint8_t* from) {
    float16x4_t halves;
    memcpy(&halves, from, sizeof(halves));
    return vcvt_f32_f16(halves);
  }

 private:
  template <int kLargest>
  static int8x16_t signed_bytes(I w) {
    return (int8x16_t)(kLargest > 127 ? w ^ 0x80808080u : w);
  }
};

}  // namespace
}  // namespace llmsrv::cpu::LLMSRV_ISA
