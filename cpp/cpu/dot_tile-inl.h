// The tile of dot products that linear layers and the scores of attention share, written in the vectors of the file
// that includes it (kernels-inl.h says what that defines).
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace llmsrv::cpu::LLMSRV_ISA {
namespace {

constexpr int kMaxVectors = 6;  // panels or blocks walked side by side; more streams than this help no prefetcher

template <typename T>
T min_of(T a, T b) {
  return a < b ? a : b;
}
template <typename T>
T max_of(T a, T b) {
  return a > b ? a : b;
}
constexpr int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// Calls f(Count<count>{}), so that a run-time count becomes a compile-time one. REQUIRES: 1 <= count <= kMost
template <int kValue>
struct Count {
  static constexpr int value = kValue;
};
template <int kMost, typename F>
void with_count(int count, const F& f) {
  if constexpr (kMost > 1) {
    if (count < kMost) return with_count<kMost - 1>(count, f);
  }
  f(Count<kMost>{});
}

// Vectors of a tile with `rows` activation rows: accumulators, operands (an even and an odd one per vector), and three
// registers for a broadcast, a mask and the compiler's freedom. One more vector would fit by count, and spills.
constexpr int vectors_for(int rows, int multiple, int operands = 2) {
  const int fitting = (kRegisters - 3) / (rows + operands);
  const int wanted = (fitting < kMaxVectors ? fitting : kMaxVectors) / multiple * multiple;
  return wanted < multiple ? multiple : wanted;
}

// --- dot products: weights' panels and keys' blocks share one layout ------------------------------------------------
//
// A column pair is a line of `lanes` words (bf16: both columns in one word) or two lines of `lanes` floats or bytes
// (f32, int8).

template <typename V>
struct Bf16Pairs {
  static constexpr int kBytesPerLane = 4;
  static void load(const uint8_t* at, int, typename V::F& even, typename V::F& odd) {
    V::load_bf16_pairs(at, even, odd);
  }
};

template <typename V>
struct F32Pairs {
  static constexpr int kBytesPerLane = 8;
  static void load(const uint8_t* at, int lanes, typename V::F& even, typename V::F& odd) {
    even = V::load(reinterpret_cast<const float*>(at));
    odd = V::load(reinterpret_cast<const float*>(at) + lanes);
  }
};

template <typename V>
struct Int8Pairs {
  static constexpr int kBytesPerLane = 2;
  static void load(const uint8_t* at, int lanes, typename V::F& even, typename V::F& odd) {
    even = V::load_int8(at);
    odd = V::load_int8(at + lanes);
  }
};

// sum[v][t] += x[t][k] * w[v]. Inlined by force: the sums live in the caller's registers.
template <typename V, int kVectors, int kRows>
__attribute__((always_inline)) inline void add_column(const float* const (&x)[kRows], int k,
                                                      const typename V::F (&w)[kVectors],
                                                      typename V::F (&sum)[kVectors][kRows]) {
#pragma GCC unroll 16
  for (int t = 0; t < kRows; ++t) {
    const typename V::F xt = V::set1(x[t][k]);
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) sum[v][t] = V::fma(xt, w[v], sum[v][t]);
  }
}

// out[t * out_stride + v * kLanes + lane] = sum_k x[t][k] * (row `lane` of stream v)[k], for kVectors streams and kRows
// rows of activations. Never reads x[t][cols]. `ahead(v, stream, offset)` is told what was just read, to prefetch what
// follows.
template <typename V, typename Pairs, int kVectors, int kRows, typename Ahead>
void dot_tile(const uint8_t* const* streams, int lanes, const float* const* x_rows, int cols, const Ahead& ahead,
              float* out, ptrdiff_t out_stride) {
  typename V::F sum[kVectors][kRows];
  typename V::F even[kVectors];
  typename V::F odd[kVectors];
  const uint8_t* w[kVectors];
  const float* x[kRows];
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) {
    w[v] = streams[v];
#pragma GCC unroll 16
    for (int t = 0; t < kRows; ++t) sum[v][t] = V::zero();
  }
#pragma GCC unroll 16
  for (int t = 0; t < kRows; ++t) x[t] = x_rows[t];

  const ptrdiff_t pair_bytes = static_cast<ptrdiff_t>(lanes) * Pairs::kBytesPerLane;
  ptrdiff_t offset = 0;
  int k = 0;
  for (; k + 2 <= cols; k += 2, offset += pair_bytes) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      Pairs::load(w[v] + offset, lanes, even[v], odd[v]);
      ahead(v, w[v], offset);
    }
    add_column<V>(x, k, even, sum);
    add_column<V>(x, k + 1, odd, sum);
  }
  if (k < cols) {  // the padded column of an odd matrix has no activation
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) Pairs::load(w[v] + offset, lanes, even[v], odd[v]);
    add_column<V>(x, k, even, sum);
  }
#pragma GCC unroll 16
  for (int t = 0; t < kRows; ++t) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) V::store(out + t * out_stride + v * V::kLanes, sum[v][t]);
  }
}

}  // namespace
}  // namespace llmsrv::cpu::LLMSRV_ISA
