// The one source of all kernels, compiled once per instruction set. The including file defines LLMSRV_ISA and, inside
// namespace llmsrv::cpu::LLMSRV_ISA:
//   Vec, NarrowVec   vectors (vec_*.h); NarrowVec has at most 8 lanes
//   kRegisters       vector registers of the machine; tiles are sized to stay inside
//   kTokenTile       most rows of activations that one pass over a panel serves
//   kQueryTile       most queries of an attention item
//
// Orders of summation, which promise P3 rests on:
//   dot products   one lane and one chain per output, k ascending
//   softmax        lane = absolute position mod lanes, ascending within a lane, then a fixed tree over lanes
//   p V            one chain per output element, positions ascending
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
// A column pair is a line of `lanes` words (bf16: both columns in one word) or two lines of `lanes` floats (f32).

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

// e^x, relative error about 1e-7; 0 below the smallest normal float, infinity above 2^127.5, NaN stays.
Vec::F exp(Vec::F x) {
  using F = Vec::F;
  const F lowest = Vec::set1(-87.336544f);      // ln 2^-126
  const F round_bias = Vec::set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low mantissa bits
  const F clamped = Vec::max(lowest, Vec::min(Vec::set1(89.0f), x));
  const F biased = Vec::fma(clamped, Vec::set1(1.44269504f), round_bias);
  const F n = Vec::sub(biased, round_bias);
  // ln 2 in two parts; n times the first is exact.
  const F r = Vec::fnma(n, Vec::set1(-2.12194440e-4f), Vec::fnma(n, Vec::set1(0.693359375f), clamped));
  F p = Vec::set1(1.0f / 5040);  // Taylor: |r| <= ln(2) / 2, so the next term is below 6e-9
  p = Vec::fma(p, r, Vec::set1(1.0f / 720));
  p = Vec::fma(p, r, Vec::set1(1.0f / 120));
  p = Vec::fma(p, r, Vec::set1(1.0f / 24));
  p = Vec::fma(p, r, Vec::set1(1.0f / 6));
  p = Vec::fma(p, r, Vec::set1(0.5f));
  p = Vec::fma(p, r, Vec::set1(1.0f));
  p = Vec::fma(p, r, Vec::set1(1.0f));
  return Vec::zero_if_less(x, lowest, Vec::mul(p, Vec::power_of_two(biased)));
}

// Combines the lanes pairwise: a fixed tree.
template <typename F>
float reduce_lanes(Vec::F vector, const F& combine) {
  float lanes[Vec::kLanes];
  Vec::store(lanes, vector);
  for (int width = Vec::kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] = combine(lanes[i], lanes[i + width]);
  }
  return lanes[0];
}
float sum_lanes(Vec::F vector) {
  return reduce_lanes(vector, [](float a, float b) { return a + b; });
}
float max_lanes(Vec::F vector) {
  return reduce_lanes(vector, [](float a, float b) { return max_of(a, b); });
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

void rms_norm(const float* in, const float* weight, int cols, float eps, float* out) {
  Vec::F squares = Vec::zero();
  for_vectors(cols, [&](int i, int n) {
    const Vec::F x = load(in + i, n);
    squares = Vec::fma(x, x, squares);
  });
  const float mean = sum_lanes(squares) / static_cast<float>(cols);
  const Vec::F scale = Vec::set1(1.0f / __builtin_sqrtf(mean + eps));
  for_vectors(
      cols, [&](int i, int n) { store(out + i, Vec::mul(Vec::mul(load(in + i, n), scale), load(weight + i, n)), n); });
}

void silu_mul(const float* gate, const float* up, int cols, float* out) {
  for_vectors(cols, [&](int i, int n) {
    const Vec::F x = load(gate + i, n);
    const Vec::F silu = Vec::div(x, Vec::add(Vec::set1(1.0f), exp(Vec::sub(Vec::zero(), x))));
    store(out + i, Vec::mul(silu, load(up + i, n)), n);
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
// One kv head's part of a block is its keys, then its values:
//   bf16  keys   [head_dim / 2][block_size][2]  elements 2i and 2i + 1 of a token: as a panel, with tokens for rows
//         values [block_size][head_dim / 2][2]  elements i and i + head_dim / 2 of a token
//   f32   keys   [head_dim][block_size]
//         values [block_size][head_dim]

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

// Loads elements [i, i + n) of both halves of one token's value; n = kLanes when kFull.
struct Bf16Values {
  using Pairs = Bf16Pairs<Vec>;
  using NarrowPairs = Bf16Pairs<NarrowVec>;
  static constexpr int kBytes = 2;
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
  using Pairs = F32Pairs<Vec>;
  using NarrowPairs = F32Pairs<NarrowVec>;
  static constexpr int kBytes = 4;
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

// --- attention ------------------------------------------------------------------------------------------------------
//
// Two passes, so that a row's arithmetic is the same in a decode step, a chunk and a whole prompt: all scores, then
// their exact maximum, exponentials and sum, then p V. Scores stand by absolute position, from a multiple of
// kPositionUnit at or before the first position that any query of the item sees.
//
// Slots past a row's end hold whatever an earlier owner left. Their scores are computed with their block, and replaced
// before anything reads them; their values are never touched.

constexpr int kPositionUnit = 32;  // a multiple of every block size and every lane count

struct Span {
  int begin;
  int end;  // exclusive
  bool empty() const { return begin >= end; }
};

// One item's view of its sequence.
struct Context {
  const AttentionTask& task;
  const AttentionItem& item;
  int base;          // position of scores[q][0]
  int score_stride;  // floats from one query's scores to the next
  int half_stride;   // floats of one half of an output accumulator
  float* scores;     // [kQueryTile][score_stride]
  float* sums;       // [kQueryTile][2][half_stride]: p V, not yet normalized
  Span seen[kQueryTile];

  const uint8_t* keys(int position) const {
    return task.cache + static_cast<size_t>(item.blocks[position / task.block_size]) * task.block_bytes +
           static_cast<size_t>(item.kv_head) * task.head_bytes;
  }
  float* query_scores(int q) const { return scores + static_cast<ptrdiff_t>(q) * score_stride; }
  float* query_sums(int q) const { return sums + static_cast<ptrdiff_t>(q) * 2 * half_stride; }
  // Where query q stands in a row of queries or of `out`, whose heads are ordered alike.
  ptrdiff_t row(int q) const { return item.first_row + (item.first_query + q) / task.group; }
  ptrdiff_t column(int q) const {
    const int head = item.kv_head * task.group + (item.first_query + q) % task.group;
    return static_cast<ptrdiff_t>(head) * task.head_dim;
  }
};

// Fetches the key blocks of the next tile while this one is computed.
template <typename V, int kVectors>
struct KeysAhead {
  const uint8_t* next[kVectors];
  void operator()(int v, const uint8_t*, ptrdiff_t offset) const { V::prefetch(next[v] + offset); }
};

template <typename V, typename Pairs, int kVectors, int kQueries>
void score_vectors(const Context& context, const float* const* queries, int first_vector, int last_vector) {
  const uint8_t* streams[kVectors];
  KeysAhead<V, kVectors> ahead;
  for (int v = 0; v < kVectors; ++v) {
    const int position = context.base + (first_vector + v) * V::kLanes;
    streams[v] = context.keys(position) + position % context.task.block_size * 4;
    const int next = context.base + min_of(first_vector + v + kVectors, last_vector) * V::kLanes;
    ahead.next[v] = context.keys(next) + next % context.task.block_size * 4;
  }
  dot_tile<V, Pairs, kVectors, kQueries>(streams, context.task.block_size, queries, context.task.head_dim, ahead,
                                         context.scores + first_vector * V::kLanes, context.score_stride);
}

// scores[q][position - base] = q . k for every position up to the last that any query sees.
template <typename V, typename Pairs>
void compute_scores(const Context& context) {
  const int queries_count = context.item.query_count;
  const float* queries[kQueryTile];
  for (int q = 0; q < queries_count; ++q) {
    queries[q] = context.task.queries + context.row(q) * context.task.query_stride + context.column(q);
  }
  const int last_position = context.seen[queries_count - 1].end - 1;
  const int last_vector = (last_position - context.base) / V::kLanes;
  with_count<kQueryTile>(queries_count, [&](auto count) {
    constexpr int kQueries = decltype(count)::value;
    constexpr int kVectors = vectors_for(kQueries, 1);
    int v = 0;
    for (; v + kVectors <= last_vector + 1; v += kVectors) {
      score_vectors<V, Pairs, kVectors, kQueries>(context, queries, v, last_vector);
    }
    for (; v <= last_vector; ++v) score_vectors<V, Pairs, 1, kQueries>(context, queries, v, last_vector);
  });
}

// Turns query q's scores into exp(scale * score - maximum), 0 outside of what it sees; returns their sum.
float exponentiate(const Context& context, int q) {
  float* scores = context.query_scores(q);
  const int begin = context.seen[q].begin - context.base;
  const int end = context.seen[q].end - context.base;
  const int first = begin / Vec::kLanes * Vec::kLanes;
  const int last = round_up(end, Vec::kLanes);
  for (int i = first; i < begin; ++i) scores[i] = -__builtin_inff();
  for (int i = end; i < last; ++i) scores[i] = -__builtin_inff();

  const Vec::F scale = Vec::set1(context.task.scale);
  Vec::F largest = Vec::set1(-__builtin_inff());
  for (int i = first; i < last; i += Vec::kLanes) {
    const Vec::F scaled = Vec::mul(Vec::load(scores + i), scale);
    Vec::store(scores + i, scaled);
    largest = Vec::max(scaled, largest);
  }
  const Vec::F maximum = Vec::set1(max_lanes(largest));
  Vec::F sum = Vec::zero();
  for (int i = first; i < last; i += Vec::kLanes) {
    const Vec::F p = exp(Vec::sub(Vec::load(scores + i), maximum));
    Vec::store(scores + i, p);
    sum = Vec::add(sum, p);
  }
  return sum_lanes(sum);
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
    const int in_block = position % task.block_size;
    const int block_end = min_of(span.end, position - in_block + task.block_size);
    const uint8_t* value = context.keys(position) + (task.block_size + in_block) * value_bytes;
    for (; position < block_end; ++position, value += value_bytes) {
      F value_low[kVectors];
      F value_high[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        Values::template load<kFull>(value, half, i + v * Vec::kLanes, n, value_low[v], value_high[v]);
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

// Rows of an item see different spans. What all of them see is read once for all; the ragged ends belong to one query
// each, so that a value is multiplied only into rows that see it.
//
//   query 0   |----------------|
//   query 1     |----------------|
//   query 2       |----------------|
//             own |   shared   | own
template <typename Values>
void add_all_values(const Context& context) {
  const int count = context.item.query_count;
  const Span shared{context.seen[count - 1].begin, context.seen[0].end};
  if (shared.empty()) {
    for (int q = 0; q < count; ++q) add_values<Values>(context, q, 1, context.seen[q]);
    return;
  }
  for (int q = 0; q < count; ++q) add_values<Values>(context, q, 1, {context.seen[q].begin, shared.begin});
  add_values<Values>(context, 0, count, shared);
  for (int q = 0; q < count; ++q) add_values<Values>(context, q, 1, {shared.end, context.seen[q].end});
}

int score_floats(int positions) { return round_up(positions + kPositionUnit, kPositionUnit); }

size_t attention_scratch_floats(int context_len, int head_dim) {
  const size_t scores = static_cast<size_t>(score_floats(context_len));
  const size_t sums = 2 * static_cast<size_t>(round_up(head_dim / 2, Vec::kLanes));
  return kQueryTile * (scores + sums);
}

template <typename Values>
void attention(const AttentionTask& task, const AttentionItem& item, float* scratch) {
  Context context{task, item, 0, 0, 0, nullptr, nullptr, {}};
  for (int q = 0; q < item.query_count; ++q) {
    const int end = item.context_len - item.row_count + (item.first_query + q) / task.group + 1;
    context.seen[q] = {end > task.window ? end - task.window : 0, end};
  }
  context.base = context.seen[0].begin / kPositionUnit * kPositionUnit;
  context.score_stride = score_floats(context.seen[item.query_count - 1].end - context.base);
  context.half_stride = round_up(task.head_dim / 2, Vec::kLanes);
  context.scores = scratch;
  context.sums = scratch + static_cast<ptrdiff_t>(kQueryTile) * context.score_stride;

  if (task.block_size >= Vec::kLanes) {
    compute_scores<Vec, typename Values::Pairs>(context);
  } else {
    compute_scores<NarrowVec, typename Values::NarrowPairs>(context);
  }
  float inverse[kQueryTile];
  for (int q = 0; q < item.query_count; ++q) inverse[q] = 1.0f / exponentiate(context, q);
  memset(context.sums, 0, static_cast<size_t>(item.query_count * 2 * context.half_stride) * sizeof(float));
  add_all_values<Values>(context);

  const int half = task.head_dim / 2;
  for (int q = 0; q < item.query_count; ++q) {
    float* out = task.out + context.row(q) * task.out_stride + context.column(q);
    const float* sums = context.query_sums(q);
    const Vec::F scale = Vec::set1(inverse[q]);
    for_vectors(half, [&](int i, int n) {
      store(out + i, Vec::mul(Vec::load(sums + i), scale), n);
      store(out + half + i, Vec::mul(Vec::load(sums + context.half_stride + i), scale), n);
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
    .silu_mul = silu_mul,
    .rotate = rotate,
    .store_kv_bf16 = store_kv_bf16,
    .store_kv_f32 = store_kv_f32,
    .attention_scratch_floats = attention_scratch_floats,
    .attention_bf16 = attention<Bf16Values>,
    .attention_f32 = attention<F32Values>,
};

}  // namespace llmsrv::cpu::LLMSRV_ISA
