// The one source of all kernels, compiled once per instruction set. The including file defines LLMSRV_ISA and, inside
// namespace llmsrv::cpu::LLMSRV_ISA:
//   Vec, NarrowVec   vectors (vec_*.h); NarrowVec has at most 8 lanes
//   kRegisters       vector registers of the machine; tiles are sized to stay inside
//   kTokenTile       most rows of activations that one pass over a panel serves
//   kQueryTile       most queries of an attention item
//
// Orders of summation, which promise P3 rests on:
//   dot products   one lane and one chain per output, k ascending
//   softmax        within a segment of kSegment positions: lane = absolute position mod lanes, ascending within a lane,
//                  then a fixed tree over lanes
//   p V            within a segment: one chain per output element, positions ascending
//   segments       one chain per query and output element, segments ascending
// None of them sees how many other rows or queries a tile holds.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cpp/cpu/kernels.h"

namespace llmsrv::cpu::LLMSRV_ISA {
namespace {

constexpr int kPanelRows = 16;
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

// Vectors of a tile with `rows` activation rows: accumulators, one even and one odd operand per vector, and three
// registers for a broadcast, a mask and the compiler's freedom. One more vector would fit by count, and spills.
constexpr int vectors_for(int rows, int multiple) {
  const int fitting = (kRegisters - 3) / (rows + 2);
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

// --- linear ---------------------------------------------------------------------------------------------------------

constexpr int kVectorsPerPanel = kPanelRows / Vec::kLanes;

// Weights are read once, in order: each stream is fetched kDistance bytes ahead, and from the end of its panel on in
// the panel that the next tile starts with, `next_panel` bytes after this one.
struct PanelAhead {
  static constexpr ptrdiff_t kDistance = 1024;
  ptrdiff_t panel_bytes;
  ptrdiff_t next_panel;
  void operator()(int v, const uint8_t* stream, ptrdiff_t offset) const {
    // One line serves all the vectors of a panel.
    if (v % kVectorsPerPanel != 0) return;
    const ptrdiff_t jump = offset + kDistance < panel_bytes ? 0 : next_panel - panel_bytes;
    Vec::prefetch(stream + offset + kDistance + jump);
  }
};

// Adds the bias, and what `out` holds already; writes only the columns that exist.
template <int kCols>
void finish_linear(const LinearTask& task, const float* tile, int first_token, int tokens, int first_column) {
  for (int t = 0; t < tokens; ++t, tile += kCols) {
    float* out = task.out + (first_token + t) * task.out_stride + first_column;
    for (int c = 0; c < kCols && first_column + c < task.rows; c += Vec::kLanes) {
      const int left = task.rows - first_column - c;
      Vec::F value = Vec::load(tile + c);
      if (left >= Vec::kLanes) {
        if (task.bias != nullptr) value = Vec::add(value, Vec::load(task.bias + first_column + c));
        if (task.add) value = Vec::add(Vec::load(out + c), value);
        Vec::store(out + c, value);
      } else {
        if (task.bias != nullptr) value = Vec::add(value, Vec::load_partial(task.bias + first_column + c, left));
        if (task.add) value = Vec::add(Vec::load_partial(out + c, left), value);
        Vec::store_partial(out + c, value, left);
      }
    }
  }
}

// Tokens [first_token, end_token) over kVectors / kVectorsPerPanel panels, kTokens at a time. A last tile that is not
// full repeats its last row.
template <typename Pairs, int kVectors, int kTokens>
void linear_panels(const LinearTask& task, int panel, int first_token, int end_token) {
  constexpr int kCols = kVectors * Vec::kLanes;
  constexpr int kPanels = kVectors / kVectorsPerPanel;
  const uint8_t* streams[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    streams[v] = task.panels + task.panel_bytes * static_cast<size_t>(panel + v / kVectorsPerPanel) +
                 v % kVectorsPerPanel * Vec::kLanes * 4;
  }
  const auto panel_bytes = static_cast<ptrdiff_t>(task.panel_bytes);
  const PanelAhead ahead{panel_bytes, kPanels * panel_bytes};
  alignas(64) float tile[kTokens * kCols];
  for (int first = first_token; first < end_token; first += kTokens) {
    const int tokens = min_of(kTokens, end_token - first);
    const float* x[kTokens];
    for (int t = 0; t < kTokens; ++t) x[t] = task.in + (first + min_of(t, tokens - 1)) * task.in_stride;
    dot_tile<Vec, Pairs, kVectors, kTokens>(streams, kPanelRows, x, task.cols, ahead, tile, kCols);
    finish_linear<kCols>(task, tile, first, tokens, panel * kPanelRows);
  }
}

// Token tiles are of equal height, so that none is nearly empty.
template <typename Pairs>
void linear_tokens(const LinearTask& task, int first_panel, int end_panel, int first_token, int end_token) {
  const int tiles = (end_token - first_token + kTokenTile - 1) / kTokenTile;
  with_count<kTokenTile>((end_token - first_token + tiles - 1) / tiles, [&](auto height) {
    constexpr int kTokens = decltype(height)::value;
    constexpr int kVectors = vectors_for(kTokens, kVectorsPerPanel);
    constexpr int kPanels = kVectors / kVectorsPerPanel;
    int panel = first_panel;
    for (; panel + kPanels <= end_panel; panel += kPanels) {
      linear_panels<Pairs, kVectors, kTokens>(task, panel, first_token, end_token);
    }
    for (; panel < end_panel; ++panel) {
      linear_panels<Pairs, kVectorsPerPanel, kTokens>(task, panel, first_token, end_token);
    }
  });
}

// Panels are the outer loop, and each is read from memory once per block of tokens: as many as stay in the second level
// cache while all panels pass by.
template <typename Pairs>
void linear(const LinearTask& task, int first_panel, int end_panel, uint8_t*) {
  constexpr int kBlockFloats = 128 * 1024;
  const int tiles = max_of(kBlockFloats / task.cols / kTokenTile, 4);
  for (int first = 0; first < task.tokens; first += tiles * kTokenTile) {
    linear_tokens<Pairs>(task, first_panel, end_panel, first, min_of(first + tiles * kTokenTile, task.tokens));
  }
}

size_t linear_scratch_bytes(int) { return 0; }

// --- rows -----------------------------------------------------------------------------------------------------------

// e^x = power (1 + r s)
struct Exponential {
  Vec::F power;
  Vec::F r;
  Vec::F s;
};

// REQUIRES: every x is NaN or in [-87.33, 89]
Exponential split_exp(Vec::F x) {
  using F = Vec::F;
  const F round_bias = Vec::set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low mantissa bits
  const F biased = Vec::fma(x, Vec::set1(1.44269504f), round_bias);
  const F n = Vec::sub(biased, round_bias);
  // ln 2 in two parts; n times the first is exact.
  const F r = Vec::fnma(n, Vec::set1(-2.12194440e-4f), Vec::fnma(n, Vec::set1(0.693359375f), x));
  F p = Vec::set1(1.0f / 5040);  // Taylor: |r| <= ln(2) / 2, so the next term is below 6e-9
  p = Vec::fma(p, r, Vec::set1(1.0f / 720));
  p = Vec::fma(p, r, Vec::set1(1.0f / 120));
  p = Vec::fma(p, r, Vec::set1(1.0f / 24));
  p = Vec::fma(p, r, Vec::set1(1.0f / 6));
  p = Vec::fma(p, r, Vec::set1(0.5f));
  p = Vec::fma(p, r, Vec::set1(1.0f));
  return {Vec::power_of_two(biased), r, p};
}

// e^x, relative error about 1e-7; 0 below the smallest normal float, infinity above 2^127.5, NaN stays.
Vec::F exp(Vec::F x) {
  const Vec::F lowest = Vec::set1(-87.336544f);  // ln 2^-126
  const Exponential parts = split_exp(Vec::max(lowest, Vec::min(Vec::set1(89.0f), x)));
  const Vec::F p = Vec::fma(parts.s, parts.r, Vec::set1(1.0f));
  return Vec::zero_if_less(x, lowest, Vec::mul(p, parts.power));
}

// tanh x = (e^2x - 1) / (e^2x + 1), relative error about 2e-7, also near 0: e^2x - 1 is never formed from e^2x.
Vec::F tanh(Vec::F x) {
  const Vec::F limit = Vec::set1(40.0f);
  const Vec::F twice = Vec::max(Vec::sub(Vec::zero(), limit), Vec::min(limit, Vec::add(x, x)));
  const Exponential parts = split_exp(twice);
  const Vec::F less_one = Vec::fma(parts.power, Vec::mul(parts.r, parts.s), Vec::sub(parts.power, Vec::set1(1.0f)));
  return Vec::div(less_one, Vec::add(less_one, Vec::set1(2.0f)));
}

// Calls f(i, n) for vectors at i of n lanes each: all full but for the last.
template <typename F>
void for_vectors(int count, const F& f) {
  int i = 0;
  for (; i + Vec::kLanes <= count; i += Vec::kLanes) f(i, Vec::kLanes);
  if (i < count) f(i, count - i);
}
Vec::F load(const float* from, int n) { return n == Vec::kLanes ? Vec::load(from) : Vec::load_partial(from, n); }
void store(float* to, Vec::F value, int n) {
  if (n == Vec::kLanes) return Vec::store(to, value);
  Vec::store_partial(to, value, n);
}

// What rms_norm multiplies each value with, before the weight.
Vec::F rms_scale(const float* in, int cols, float eps) {
  Vec::F squares = Vec::zero();
  for_vectors(cols, [&](int i, int n) {
    const Vec::F x = load(in + i, n);
    squares = Vec::fma(x, x, squares);
  });
  const float mean = Vec::sum(squares) / static_cast<float>(cols);
  return Vec::set1(1.0f / __builtin_sqrtf(mean + eps));
}

void rms_norm(const float* in, const float* weight, int cols, float eps, float* out) {
  const Vec::F scale = rms_scale(in, cols, eps);
  for_vectors(
      cols, [&](int i, int n) { store(out + i, Vec::mul(Vec::mul(load(in + i, n), scale), load(weight + i, n)), n); });
}

void add_rms_norm(const float* in, const float* weight, int cols, float eps, float* out) {
  const Vec::F scale = rms_scale(in, cols, eps);
  for_vectors(cols, [&](int i, int n) {
    store(out + i, Vec::fma(Vec::mul(load(in + i, n), scale), load(weight + i, n), load(out + i, n)), n);
  });
}

// x / (1 + e^-y)
Vec::F times_sigmoid(Vec::F x, Vec::F y) {
  return Vec::div(x, Vec::add(Vec::set1(1.0f), exp(Vec::sub(Vec::zero(), y))));
}

void silu_mul(const float* gate, const float* up, int cols, float* out) {
  for_vectors(cols, [&](int i, int n) {
    const Vec::F x = load(gate + i, n);
    store(out + i, Vec::mul(times_sigmoid(x, x), load(up + i, n)), n);
  });
}

void gelu_mul(const float* gate, const float* up, int cols, float* out) {
  const Vec::F linear = Vec::set1(1.59576912f);   // 2 sqrt(2 / pi)
  const Vec::F cubic = Vec::set1(0.0713548163f);  // 0.044715 of it
  for_vectors(cols, [&](int i, int n) {
    const Vec::F x = load(gate + i, n);
    const Vec::F twice_u = Vec::mul(x, Vec::fma(cubic, Vec::mul(x, x), linear));
    store(out + i, Vec::mul(times_sigmoid(x, twice_u), load(up + i, n)), n);
  });
}

void rotate(float* head, const float* cos, const float* sin, int head_dim) {
  const int half = head_dim / 2;
  for_vectors(half, [&](int i, int n) {
    const Vec::F low = load(head + i, n);
    const Vec::F high = load(head + half + i, n);
    const Vec::F c = load(cos + i, n);
    const Vec::F s = load(sin + i, n);
    store(head + i, Vec::fnma(high, s, Vec::mul(low, c)), n);
    store(head + half + i, Vec::fma(low, s, Vec::mul(high, c)), n);
  });
}

// --- the paged cache ------------------------------------------------------------------------------------------------
//
// One kv head's part of a block is its keys, then its values, then (int8) the scales of both:
//   bf16  keys   [head_dim / 2][block_size][2]  elements 2i and 2i + 1 of a token: as a panel, with tokens for rows
//         values [block_size][head_dim / 2][2]  elements i and i + head_dim / 2 of a token
//   f32   keys   [head_dim][block_size]
//         values [block_size][head_dim]
//   int8  keys and values as f32, then float scales [2][block_size] of keys and values

// As float_to_bf16 of base/float16.h, which a kernel file may not include.
uint32_t bf16_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return (bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16 | 0x40u) : rounded;
}

void store_kv_bf16(const float* key, const float* value, int head_dim, int block_size, int offset,
                   uint8_t* head_block) {
  const int half = head_dim / 2;
  uint8_t* key_at = head_block + offset * 4;
  uint8_t* value_at = head_block + (block_size + offset) * head_dim * 2;
  for (int i = 0; i < half; ++i) {
    const uint32_t key_pair = bf16_bits(key[2 * i]) | bf16_bits(key[2 * i + 1]) << 16;
    memcpy(key_at + static_cast<ptrdiff_t>(i) * block_size * 4, &key_pair, sizeof(key_pair));
    const uint32_t value_pair = bf16_bits(value[i]) | bf16_bits(value[half + i]) << 16;
    memcpy(value_at + i * 4, &value_pair, sizeof(value_pair));
  }
}

void store_kv_f32(const float* key, const float* value, int head_dim, int block_size, int offset, uint8_t* head_block) {
  auto* block = reinterpret_cast<float*>(head_block);
  for (int i = 0; i < head_dim; ++i) block[i * block_size + offset] = key[i];
  memcpy(block + (block_size + offset) * head_dim, value, static_cast<size_t>(head_dim) * 4);
}

// Rounds x[i] / scale to out[i * stride], for the scale max|x| / 127, which it returns. All are 0 where that is too
// small for a float to invert; a NaN or an infinity makes the scale NaN.
float quantize_int8(const float* x, int count, int stride, uint8_t* out) {
  uint32_t largest_bits = 0;  // without their sign, floats are ordered as their bits are, infinity and NaN last
  for (int i = 0; i < count; ++i) {
    uint32_t bits;
    memcpy(&bits, x + i, sizeof(bits));
    largest_bits = max_of(largest_bits, bits & 0x7fffffffu);
  }
  float largest;
  memcpy(&largest, &largest_bits, sizeof(largest));
  const bool is_finite = largest_bits < 0x7f800000u;
  const float inverse = is_finite && largest >= 0x1p-100f ? 127.0f / largest : 0.0f;
  for (int i = 0; i < count; ++i) {
    const float biased = (is_finite ? x[i] : 0.0f) * inverse + 12582912.0f;  // as in exp: an integer in the low bits
    memcpy(out + static_cast<ptrdiff_t>(i) * stride, &biased, 1);
  }
  if (!is_finite) return __builtin_nanf("");
  return inverse == 0.0f ? 0.0f : largest / 127.0f;
}

void store_kv_int8(const float* key, const float* value, int head_dim, int block_size, int offset,
                   uint8_t* head_block) {
  const ptrdiff_t values_at = static_cast<ptrdiff_t>(block_size) * head_dim;
  const float scales[2] = {quantize_int8(key, head_dim, block_size, head_block + offset),
                           quantize_int8(value, head_dim, 1, head_block + values_at + offset * head_dim)};
  uint8_t* scale_at = head_block + 2 * values_at + offset * 4;
  memcpy(scale_at, scales, 4);
  memcpy(scale_at + block_size * 4, scales + 1, 4);
}

// How a cache is read: the keys of tokens side by side (Pairs, kKeyBytes from one token's to the next one's), and
// elements [i, i + n) of both halves of one token's value (load; n = kLanes when kFull).
struct Bf16Values {
  template <typename V>
  using Pairs = Bf16Pairs<V>;
  static constexpr int kBytes = 2;
  static constexpr int kKeyBytes = 4;
  static constexpr bool kHasScales = false;
  template <bool kFull>
  static void load(const uint8_t* value, int, int i, int n, Vec::F& low, Vec::F& high) {
    if constexpr (kFull) {
      Vec::load_bf16_pairs(value + i * 4, low, high);
    } else {
      Vec::load_bf16_pairs_partial(value + i * 4, n, low, high);
    }
  }
};

struct F32Values {
  template <typename V>
  using Pairs = F32Pairs<V>;
  static constexpr int kBytes = 4;
  static constexpr int kKeyBytes = 4;
  static constexpr bool kHasScales = false;
  template <bool kFull>
  static void load(const uint8_t* value, int half, int i, int n, Vec::F& low, Vec::F& high) {
    const auto* elements = reinterpret_cast<const float*>(value) + i;
    if constexpr (kFull) {
      low = Vec::load(elements);
      high = Vec::load(elements + half);
    } else {
      low = Vec::load_partial(elements, n);
      high = Vec::load_partial(elements + half, n);
    }
  }
};

// Loads whole vectors always: what stands behind an element is an integer too, or a scale's bytes, and lanes from n on
// are never used.
struct Int8Values {
  template <typename V>
  using Pairs = Int8Pairs<V>;
  static constexpr int kBytes = 1;
  static constexpr int kKeyBytes = 1;
  static constexpr bool kHasScales = true;
  template <bool kFull>
  static void load(const uint8_t* value, int half, int i, int, Vec::F& low, Vec::F& high) {
    low = Vec::load_int8(value + i);
    high = Vec::load_int8(value + half + i);
  }
};

// --- attention ------------------------------------------------------------------------------------------------------
//
// The positions of a sequence fall into segments of kSegment, by absolute position. A query's result over one segment
// is its maximum m, l = sum of p = e^(score - m), and the sum of p v: two passes, all scores first. Over all segments
// that it sees, ascending, the result is sum e^(m - M) (p v) / sum e^(m - M) l, where M is the largest m. So neither
// who computes a segment nor what else is computed with it can change a bit, and a long context can be shared by
// threads.
//
// Slots past a row's end hold whatever an earlier owner left. Their scores are computed with their block, and replaced
// before anything reads them; their values are never touched.

constexpr int kSegment = 128;      // positions
constexpr int kValuesAhead = 64;   // positions between a value that is read and one that is fetched
constexpr int kPositionUnit = 32;  // scores start at a multiple: of every block size and every lane count

struct Span {
  int begin;
  int end;  // exclusive
  bool empty() const { return begin >= end; }
};

// The positions that query q of an item sees.
Span seen_by(const AttentionTask& task, const AttentionItem& item, int q) {
  const int end = item.context_len - item.row_count + (item.first_query + q) / task.group + 1;
  return {end > task.window ? end - task.window : 0, end};
}

// What the segments of an item came to, until finish_attention() joins them.
struct Partials {
  int first_segment;
  int segments;
  int half_stride;  // floats of one half of p V
  float* maxima;    // [kQueryTile][segments]
  float* sums;      // [kQueryTile][segments]
  float* values;    // [segments][kQueryTile][2][half_stride]: p V

  float* query_values(int segment, int q) const {
    const ptrdiff_t row = static_cast<ptrdiff_t>(segment - first_segment) * kQueryTile + q;
    return values + row * 2 * half_stride;
  }
};

size_t attention_partial_floats(int context_len, int head_dim) {
  const size_t segments = static_cast<size_t>(round_up(context_len, kSegment) / kSegment);
  return segments * kQueryTile * static_cast<size_t>(2 + 2 * round_up(head_dim / 2, Vec::kLanes));
}

Partials partials_of(const AttentionTask& task, const AttentionItem& item, float* memory) {
  const int first = seen_by(task, item, 0).begin / kSegment;
  const int segments = (seen_by(task, item, item.query_count - 1).end - 1) / kSegment - first + 1;
  float* sums = memory + kQueryTile * segments;
  return {first, segments, round_up(task.head_dim / 2, Vec::kLanes), memory, sums, sums + kQueryTile * segments};
}

// One segment of an item, with those of its queries that see any of it.
struct Context {
  const AttentionTask& task;
  AttentionItem item;
  int block_shift;       // log2 of the block size
  ptrdiff_t keys_bytes;  // of one head in a block; its values take as many
  int item_begin;        // position of the first segment
  int base;              // position of scores[q][0]
  int end;               // of the positions that any query sees
  int half_stride;       // as in Partials
  float* scores;         // [kQueryTile][kSegment]
  float* sums;           // [kQueryTile][2][half_stride]: p V
  Span seen[kQueryTile];

  int in_block(int position) const { return position & (task.block_size - 1); }
  const uint8_t* block(int position) const {
    return task.cache + static_cast<size_t>(item.blocks[position >> block_shift]) * task.block_bytes +
           static_cast<size_t>(item.kv_head) * task.head_bytes;
  }
  // What is read some time after the values at offset `value_at` in an earlier block: the values that stand there in
  // the block of `position`; its keys where the next segment has begun; where the sequence has ended, the first keys of
  // the next kv head (behind the last one, some address that nobody reads).
  const uint8_t* after_values(int position, ptrdiff_t value_at) const {
    if (position < end) return block(position) + value_at;
    if (position < item.context_len) return block(position) + value_at - keys_bytes;
    const int known = min_of(item_begin + position - item.context_len, item.context_len - 1);
    return block(known) + task.head_bytes + value_at - keys_bytes;
  }
  float* query_scores(int q) const { return scores + q * kSegment; }
  float* query_sums(int q) const { return sums + static_cast<ptrdiff_t>(q) * 2 * half_stride; }
};

// Where query q of an item stands in a row of queries or of `out`, whose heads are ordered alike.
ptrdiff_t query_row(const AttentionTask& task, const AttentionItem& item, int q) {
  return item.first_row + (item.first_query + q) / task.group;
}
ptrdiff_t query_column(const AttentionTask& task, const AttentionItem& item, int q) {
  const int head = item.kv_head * task.group + (item.first_query + q) % task.group;
  return static_cast<ptrdiff_t>(head) * task.head_dim;
}

// Vectors of positions that the queries of a segment see.
template <typename V>
int vectors_of(const Context& context) {
  return (context.end - context.base + V::kLanes - 1) / V::kLanes;
}

enum ScaleKind { kKeyScales, kValueScales };  // in their order in a block

// scores[q][position - base] *= scale of the position, for vectors [first_vector, end_vector) of positions.
template <typename V>
void multiply_by_scales(const Context& context, int first_vector, int end_vector, ScaleKind kind) {
  for (int v = first_vector; v < end_vector; ++v) {
    const int position = context.base + v * V::kLanes;
    const uint8_t* scales = context.block(position) + 2 * context.keys_bytes +
                            (kind * context.task.block_size + context.in_block(position)) * 4;
    const typename V::F scale = V::load(reinterpret_cast<const float*>(scales));
    for (int q = 0; q < context.item.query_count; ++q) {
      float* at = context.query_scores(q) + v * V::kLanes;
      V::store(at, V::mul(V::load(at), scale));
    }
  }
}

// Fetches what is read after the keys of a tile while these are computed: the keys of the next tile, or the segment's
// first values.
template <typename V, int kVectors>
struct KeysAhead {
  const uint8_t* next[kVectors];
  void operator()(int v, const uint8_t*, ptrdiff_t offset) const { V::prefetch_far(next[v] + offset); }
};

template <typename V, typename Values, int kVectors, int kQueries>
void score_vectors(const Context& context, const float* const* queries, int first_vector) {
  const AttentionTask& task = context.task;
  const uint8_t* streams[kVectors];
  KeysAhead<V, kVectors> ahead;
  for (int v = 0; v < kVectors; ++v) {
    const int position = context.base + (first_vector + v) * V::kLanes;
    const int next = position + kVectors * V::kLanes;
    streams[v] = context.block(position) + context.in_block(position) * Values::kKeyBytes;
    ahead.next[v] = next < context.end
                        ? context.block(next) + context.in_block(next) * Values::kKeyBytes
                        : context.block(min_of(context.base + v * V::kLanes, context.end - 1)) + context.keys_bytes;
  }
  float* scores = context.scores + first_vector * V::kLanes;
  dot_tile<V, typename Values::template Pairs<V>, kVectors, kQueries>(streams, task.block_size, queries, task.head_dim,
                                                                      ahead, scores, kSegment);
  if constexpr (Values::kHasScales) multiply_by_scales<V>(context, first_vector, first_vector + kVectors, kKeyScales);
}

// Vectors of a tile of scores: a power of two, so that whole tiles fill a segment.
constexpr int score_vectors_for(int queries) {
  int vectors = 1;
  while (2 * vectors <= vectors_for(queries, 1)) vectors *= 2;
  return vectors;
}

// Vectors [vector, end_vector) of positions, in tiles of kVectors and then of less.
template <typename V, typename Values, int kVectors, int kQueries>
void score_span(const Context& context, const float* const* queries, int vector, int end_vector) {
  for (; vector + kVectors <= end_vector; vector += kVectors) {
    score_vectors<V, Values, kVectors, kQueries>(context, queries, vector);
  }
  if constexpr (kVectors > 1) {
    if (vector < end_vector) score_span<V, Values, kVectors / 2, kQueries>(context, queries, vector, end_vector);
  }
}

// scores[q][position - base] = q . k for every position of the segment up to the last that any query sees.
template <typename V, typename Values>
void compute_scores(const Context& context) {
  const AttentionItem& item = context.item;
  const float* queries[kQueryTile];
  for (int q = 0; q < item.query_count; ++q) {
    queries[q] = context.task.queries + query_row(context.task, item, q) * context.task.query_stride +
                 query_column(context.task, item, q);
  }
  with_count<kQueryTile>(item.query_count, [&](auto count) {
    constexpr int kQueries = decltype(count)::value;
    score_span<V, Values, score_vectors_for(kQueries), kQueries>(context, queries, 0, vectors_of<V>(context));
  });
}

// The scores of query q, from a vector's begin to a vector's end.
Span whole_vectors(const Context& context, int q) {
  return {(context.seen[q].begin - context.base) / Vec::kLanes * Vec::kLanes,
          round_up(context.seen[q].end - context.base, Vec::kLanes)};
}

// Scales query q's scores, bends them by the soft cap, makes those that it does not see -infinity; returns the largest.
float scale_scores(const Context& context, int q) {
  constexpr float kLowest = -3.402823466e38f;  // -infinity can be subtracted from it
  const AttentionTask& task = context.task;
  const Span span = whole_vectors(context, q);
  float* scores = context.query_scores(q);
  float scale = task.scale;
  if (task.soft_cap != nullptr) {
    const Vec::F bend = Vec::set1(scale / *task.soft_cap);
    for (int i = span.begin; i < span.end; i += Vec::kLanes) {
      Vec::store(scores + i, tanh(Vec::mul(Vec::load(scores + i), bend)));
    }
    scale = *task.soft_cap;
  }
  for (int i = span.begin; i < context.seen[q].begin - context.base; ++i) scores[i] = -__builtin_inff();
  for (int i = context.seen[q].end - context.base; i < span.end; ++i) scores[i] = -__builtin_inff();
  Vec::F largest = Vec::set1(kLowest);
  for (int i = span.begin; i < span.end; i += Vec::kLanes) {
    const Vec::F scaled = Vec::mul(Vec::load(scores + i), Vec::set1(scale));
    Vec::store(scores + i, scaled);
    largest = Vec::max(scaled, largest);
  }
  return Vec::largest(largest);
}

// Turns query q's scores into p = e^(score - maximum); returns their sum.
float exponentiate(const Context& context, int q, float maximum) {
  const Span span = whole_vectors(context, q);
  float* scores = context.query_scores(q);
  Vec::F sum = Vec::zero();
  for (int i = span.begin; i < span.end; i += Vec::kLanes) {
    const Vec::F p = exp(Vec::sub(Vec::load(scores + i), Vec::set1(maximum)));
    Vec::store(scores + i, p);
    sum = Vec::add(sum, p);
  }
  return Vec::sum(sum);
}

// sums[q][i] += p[q][j] * v[j][i] over positions j of `span`, ascending; kVectors vectors of each half, from element i
// on.
template <typename Values, int kVectors, int kQueries, bool kFull>
void add_values_tile(const Context& context, int first_query, Span span, int i, int n) {
  using F = Vec::F;
  const AttentionTask& task = context.task;
  const int half = task.head_dim / 2;
  const ptrdiff_t value_bytes = static_cast<ptrdiff_t>(task.head_dim) * Values::kBytes;
  F low[kVectors][kQueries];
  F high[kVectors][kQueries];
  const float* p[kQueries];
#pragma GCC unroll 16
  for (int q = 0; q < kQueries; ++q) {
    p[q] = context.query_scores(first_query + q) - context.base;
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const float* sums = context.query_sums(first_query + q) + i + v * Vec::kLanes;
      low[v][q] = Vec::load(sums);
      high[v][q] = Vec::load(sums + context.half_stride);
    }
  }
  for (int position = span.begin; position < span.end;) {
    const int in_block = context.in_block(position);
    const int block_end = min_of(span.end, position - in_block + task.block_size);
    const ptrdiff_t value_at = context.keys_bytes + in_block * value_bytes;
    const uint8_t* value = context.block(position) + value_at;
    const ptrdiff_t jump = context.after_values(position + kValuesAhead, value_at) - value;
    for (; position < block_end; ++position, value += value_bytes) {
      F value_low[kVectors];
      F value_high[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        Values::template load<kFull>(value, half, i + v * Vec::kLanes, n, value_low[v], value_high[v]);
        Vec::prefetch_far(value + jump + (i + v * Vec::kLanes) * 2 * Values::kBytes);
      }
#pragma GCC unroll 16
      for (int q = 0; q < kQueries; ++q) {
        const F weight = Vec::set1(p[q][position]);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          low[v][q] = Vec::fma(weight, value_low[v], low[v][q]);
          high[v][q] = Vec::fma(weight, value_high[v], high[v][q]);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      float* sums = context.query_sums(first_query + q) + i + v * Vec::kLanes;
      Vec::store(sums, low[v][q]);
      Vec::store(sums + context.half_stride, high[v][q]);
    }
  }
}

// The same for whole heads of queries [first_query, first_query + count).
template <typename Values>
void add_values(const Context& context, int first_query, int count, Span span) {
  if (span.empty()) return;
  const int half = context.task.head_dim / 2;
  with_count<kQueryTile>(count, [&](auto queries) {
    constexpr int kQueries = decltype(queries)::value;
    constexpr int kVectors = 4 * kQueries + 5 <= kRegisters ? 2 : 1;
    int i = 0;
    for (; i + kVectors * Vec::kLanes <= half; i += kVectors * Vec::kLanes) {
      add_values_tile<Values, kVectors, kQueries, true>(context, first_query, span, i, Vec::kLanes);
    }
    for (; i + Vec::kLanes <= half; i += Vec::kLanes) {
      add_values_tile<Values, 1, kQueries, true>(context, first_query, span, i, Vec::kLanes);
    }
    if (i < half) add_values_tile<Values, 1, kQueries, false>(context, first_query, span, i, half - i);
  });
}

// Queries of an item see different spans. What all of them see is read once for all; the ragged ends belong to one
// query each, so that a value is multiplied only into rows that see it.
//
//   query 0   |----------------|
//   query 1     |----------------|
//   query 2       |----------------|
//             own |   shared   | own
template <typename Values>
void add_all_values(const Context& context) {
  const int count = context.item.query_count;
  memset(context.sums, 0, static_cast<size_t>(count * 2 * context.half_stride) * sizeof(float));
  const Span shared{context.seen[count - 1].begin, context.seen[0].end};
  if (shared.empty()) {
    for (int q = 0; q < count; ++q) add_values<Values>(context, q, 1, context.seen[q]);
    return;
  }
  for (int q = 0; q < count; ++q) add_values<Values>(context, q, 1, {context.seen[q].begin, shared.begin});
  add_values<Values>(context, 0, count, shared);
  for (int q = 0; q < count; ++q) add_values<Values>(context, q, 1, {shared.end, context.seen[q].end});
}

template <typename V, typename Values>
void attend(const Context& context, float* maxima, float* sums, int stride) {
  compute_scores<V, Values>(context);
  const int queries = context.item.query_count;
  for (int q = 0; q < queries; ++q) maxima[q * stride] = scale_scores(context, q);
  for (int q = 0; q < queries; ++q) sums[q * stride] = exponentiate(context, q, maxima[q * stride]);
  // The value's scale goes into p. Positions that a query does not see become anything, and are never read again.
  if constexpr (Values::kHasScales) multiply_by_scales<V>(context, 0, vectors_of<V>(context), kValueScales);
  add_all_values<Values>(context);
}

template <typename Values>
void attention_segment(const AttentionTask& task, const AttentionItem& item, int segment, const Partials& partials) {
  alignas(64) float scores[kQueryTile * kSegment];
  Context context{
      .task = task,
      .item = item,
      .block_shift = __builtin_ctz(static_cast<unsigned>(task.block_size)),
      .keys_bytes = static_cast<ptrdiff_t>(task.block_size) * task.head_dim * Values::kBytes,
      .item_begin = partials.first_segment * kSegment,
      .base = 0,
      .end = 0,
      .half_stride = partials.half_stride,
      .scores = scores,
      .sums = nullptr,
      .seen = {},
  };
  int first = 0;  // both ends of what queries see ascend: those that see some of this segment are neighbours
  int count = 0;
  for (int q = 0; q < item.query_count; ++q) {
    const Span seen = seen_by(task, item, q);
    const Span here{max_of(seen.begin, segment * kSegment), min_of(seen.end, (segment + 1) * kSegment)};
    if (here.empty()) continue;
    if (count == 0) first = q;
    context.seen[count++] = here;
  }
  context.item.first_query += first;
  context.item.query_count = count;
  context.base = context.seen[0].begin / kPositionUnit * kPositionUnit;
  context.end = context.seen[count - 1].end;
  context.sums = partials.query_values(segment, first);

  const int at = first * partials.segments + segment - partials.first_segment;
  if (task.block_size >= Vec::kLanes) {
    attend<Vec, Values>(context, partials.maxima + at, partials.sums + at, partials.segments);
  } else {
    attend<NarrowVec, Values>(context, partials.maxima + at, partials.sums + at, partials.segments);
  }
}

template <typename Values>
void attention(const AttentionTask& task, const AttentionItem& item, int first_segment, int end_segment,
               float* partials) {
  const Partials results = partials_of(task, item, partials);
  for (int segment = first_segment; segment < end_segment; ++segment) {
    attention_segment<Values>(task, item, segment, results);
  }
}

// Turns the maxima of a query's segments into their weights e^(m - M), and returns 1 / sum of weight * l.
float weigh_segments(float* maxima, const float* sums, int segments) {
  float maximum = maxima[0];
  for (int s = 1; s < segments; ++s) maximum = max_of(maximum, maxima[s]);
  for_vectors(segments,
              [&](int s, int n) { store(maxima + s, exp(Vec::sub(load(maxima + s, n), Vec::set1(maximum))), n); });
  float sum = 0.0f;
  for (int s = 0; s < segments; ++s) sum += maxima[s] * sums[s];
  return 1.0f / sum;
}

void finish_attention(const AttentionTask& task, const AttentionItem& item, float* partials) {
  const Partials results = partials_of(task, item, partials);
  const int half = task.head_dim / 2;
  for (int q = 0; q < item.query_count; ++q) {
    const Span seen = seen_by(task, item, q);
    const int first = seen.begin / kSegment;
    const int segments = (seen.end - 1) / kSegment - first + 1;
    const int at = q * results.segments + first - results.first_segment;
    float* weights = results.maxima + at;
    const Vec::F inverse = Vec::set1(weigh_segments(weights, results.sums + at, segments));
    float* out = task.out + query_row(task, item, q) * task.out_stride + query_column(task, item, q);
    for_vectors(half, [&](int i, int n) {
      Vec::F low = Vec::zero();
      Vec::F high = Vec::zero();
      for (int s = 0; s < segments; ++s) {
        const float* values = results.query_values(first + s, q) + i;
        low = Vec::fma(Vec::set1(weights[s]), Vec::load(values), low);
        high = Vec::fma(Vec::set1(weights[s]), Vec::load(values + results.half_stride), high);
      }
      store(out + i, Vec::mul(low, inverse), n);
      store(out + half + i, Vec::mul(high, inverse), n);
    });
  }
}

}  // namespace

const KernelTable table = {
    .query_tile = kQueryTile,
    .linear_bf16 = linear<Bf16Pairs<Vec>>,
    .linear_f32 = linear<F32Pairs<Vec>>,
    .linear_scratch_bytes = linear_scratch_bytes,
    .rms_norm = rms_norm,
    .add_rms_norm = add_rms_norm,
    .silu_mul = silu_mul,
    .gelu_mul = gelu_mul,
    .rotate = rotate,
    .store_kv_bf16 = store_kv_bf16,
    .store_kv_f32 = store_kv_f32,
    .store_kv_int8 = store_kv_int8,
    .segment_positions = kSegment,
    .attention_partial_floats = attention_partial_floats,
    .attention_bf16 = attention<Bf16Values>,
    .attention_f32 = attention<F32Values>,
    .attention_int8 = attention<Int8Values>,
    .finish_attention = finish_attention,
};

}  // namespace llmsrv::cpu::LLMSRV_ISA
