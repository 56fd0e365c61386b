#include "python/bindings/testing/peak.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace llmsrv::testing {
namespace {

// Enough independent chains to fill two pipes of six cycles each.
constexpr int kChains = 16;

#if defined(__x86_64__)

__attribute__((target("avx512f"))) float f32_avx512(long rounds) {
  __m512 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 a = _mm512_set1_ps(0.5f);
  const __m512 b = _mm512_set1_ps(1.0f);
  for (long r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_fmadd_ps(sums[i], a, b);
  }
  __m512 total = sums[0];
  for (int i = 1; i < kChains; ++i) total = _mm512_add_ps(total, sums[i]);
  float lanes[16];
  _mm512_storeu_ps(lanes, total);
  return lanes[0];
}

__attribute__((target("avx512f,avx512bf16"))) float bf16_avx512(long rounds) {
  __m512 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_setzero_ps();
  const auto a = (__m512bh)_mm512_set1_epi32(static_cast<int>(rounds));
  const auto b = (__m512bh)_mm512_set1_epi32(0x3f803f80);
  for (long r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], a, b);
  }
  __m512 total = sums[0];
  for (int i = 1; i < kChains; ++i) total = _mm512_add_ps(total, sums[i]);
  float lanes[16];
  _mm512_storeu_ps(lanes, total);
  return lanes[0];
}

__attribute__((target("avx512f,avx512vnni"))) float int8_avx512(long rounds) {
  __m512i sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_epi32(i);
  const __m512i a = _mm512_set1_epi8(static_cast<char>(rounds));
  const __m512i b = _mm512_set1_epi8(1);
  for (long r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_dpbusd_epi32(sums[i], a, b);
  }
  __m512i total = sums[0];
  for (int i = 1; i < kChains; ++i) total = _mm512_add_epi32(total, sums[i]);
  int lanes[16];
  _mm512_storeu_si512(lanes, total);
  return static_cast<float>(lanes[0]);
}

__attribute__((target("avx2,fma"))) float f32_avx2(long rounds) {
  constexpr int kFewer = 12;  // of 16 registers
  __m256 sums[kFewer];
  for (int i = 0; i < kFewer; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 a = _mm256_set1_ps(0.5f);
  const __m256 b = _mm256_set1_ps(1.0f);
  for (long r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kFewer; ++i) sums[i] = _mm256_fmadd_ps(sums[i], a, b);
  }
  __m256 total = sums[0];
  for (int i = 1; i < kFewer; ++i) total = _mm256_add_ps(total, sums[i]);
  float lanes[8];
  _mm256_storeu_ps(lanes, total);
  return lanes[0];
}

#endif

float f32_portable(long rounds) {
  using F = float __attribute__((vector_size(16)));
  constexpr int kFewer = 12;
  F sums[kFewer] = {};
  for (long r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kFewer; ++i) sums[i] = sums[i] * 0.5f + 1.0f;
  }
  F total = sums[0];
  for (int i = 1; i < kFewer; ++i) total += sums[i];
  return total[0];
}

}  // namespace

std::vector<PeakKernel> peak_kernels() {
  std::vector<PeakKernel> kernels;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) kernels.push_back({"f32 fma (avx512)", 2.0 * 16 * kChains, f32_avx512});
  if (__builtin_cpu_supports("avx512bf16")) kernels.push_back({"bf16 dot (avx512)", 4.0 * 16 * kChains, bf16_avx512});
  if (__builtin_cpu_supports("avx512vnni")) kernels.push_back({"int8 dot (avx512)", 8.0 * 16 * kChains, int8_avx512});
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    kernels.push_back({"f32 fma (avx2)", 2.0 * 8 * 12, f32_avx2});
  }
#endif
  kernels.push_back({"f32 (portable)", 2.0 * 4 * 12, f32_portable});
  return kernels;
}

std::size_t read_all(const std::byte* data, std::size_t bytes) {
  using Words = std::uint64_t __attribute__((vector_size(16)));
  constexpr std::size_t kStreams = 8;  // one alone waits for the prefetcher at every page
  const std::size_t part = bytes / kStreams / 64 * 64;
  Words sums[4] = {};
  for (std::size_t at = 0; at < part; at += 64) {
    for (std::size_t stream = 0; stream < kStreams; ++stream) {
      const std::byte* line = data + stream * part + at;
      __builtin_prefetch(line + 1024);
      for (std::size_t i = 0; i < 4; ++i) {
        Words words;
        std::memcpy(&words, line + 16 * i, sizeof(words));
        sums[i] += words;
      }
    }
  }
  const Words total = sums[0] + sums[1] + sums[2] + sums[3];
  return total[0] + total[1];
}

}  // namespace llmsrv::testing
