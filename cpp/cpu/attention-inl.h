// Attention over the paged cache (laid out as kernels-inl.h says), written in the vectors of the file that includes it.
//
// Orders of summation, which promise P3 rests on:
//   scores         one lane and one chain per query and position, elements ascending
//   softmax        within a segment of kSegment positions: lane = absolute position mod lanes, ascending within a lane,
//                  then a fixed tree over lanes
//   p V            within a segment: one chain per output element, positions ascending
//   segments       one chain per query and output element, segments ascending
// None of them sees how many other queries a tile holds.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cpp/cpu/dot_tile-inl.h"
#include "cpp/cpu/kernels.h"
#include "cpp/cpu/vector_math-inl.h"

namespace llmsrv::cpu::LLMSRV_ISA {
namespace {

// --- how a cache is read
// ----------------------------------------------------------------------------------------------
//
// Keys stand side by side, kKeyBytes from one token's to the next one's, in lines of Pairs. load_value() gives elements
// [i, i + n) of one token of a pair of values, which takes 2 * head_dim * kBytes; n = kLanes when kFull.

enum Token { kFirstOfPair, kSecondOfPair };  // at an even position, at an odd one

struct Bf16Cache {
  template <typename V>
  using Pairs = Bf16Pairs<V>;
  static constexpr int kBytes = 2;
  static constexpr int kKeyBytes = 4;
  static constexpr bool kHasScales = false;
  template <Token kToken, bool kFull>
  static Vec::F load_value(const uint8_t* pair, int, int i, int n) {
    Vec::F first, second;
    if constexpr (kFull) {
      Vec::load_bf16_pairs(pair + i * 4, first, second);
    } else {
      Vec::load_bf16_pairs_partial(pair + i * 4, n, first, second);
    }
    return kToken == kFirstOfPair ? first : second;
  }
};

struct F32Cache {
  template <typename V>
  using Pairs = F32Pairs<V>;
  static constexpr int kBytes = 4;
  static constexpr int kKeyBytes = 4;
  static constexpr bool kHasScales = false;
  template <Token kToken, bool kFull>
  static Vec::F load_value(const uint8_t* pair, int head_dim, int i, int n) {
    const float* elements = reinterpret_cast<const float*>(pair) + (kToken == kFirstOfPair ? 0 : head_dim) + i;
    if constexpr (kFull) return Vec::load(elements);
    return Vec::load_partial(elements, n);
  }
};

// Loads whole vectors always: what stands behind an element is an integer too, or a scale's bytes, and lanes from n on
// are never used.
struct Int8Cache {
  template <typename V>
  using Pairs = Int8Pairs<V>;
  static constexpr int kBytes = 1;
  static constexpr int kKeyBytes = 1;
  static constexpr bool kHasScales = true;
  template <Token kToken, bool kFull>
  static Vec::F load_value(const uint8_t* pair, int head_dim, int i, int) {
    return Vec::load_int8(pair + (kToken == kFirstOfPair ? 0 : head_dim) + i);
  }
};

// --- arithmetic
// -------------------------------------------------------------------------------------------------------

// Sums of a tile of p V: kVectors vectors of elements for kQueries queries.
template <int kVectors, int kQueries>
using ValueSums = Vec::F[kVectors][kQueries];

// Which positions of a pair are added.
enum class Seen { kBoth, kFirst, kSecond };

// Fused multiply-adds in float32. Another arithmetic is another struct with these members.
template <typename Cache>
struct Fma : Cache {
  using Query = float;                             // what a row of queries becomes
  static constexpr int kOperandsPerKeyVector = 2;  // registers of a tile beside its sums

  // The queries of an item, where they do not stay as they are.
  struct Room {};
  static const Query* prepare_query(const float* query, int, Room&, int) { return query; }

  // As dot_tile.
  template <typename V, int kVectors, int kQueries, typename Ahead>
  static void multiply_keys(const uint8_t* const* streams, int lanes, const Query* const* queries, int head_dim,
                            const Ahead& ahead, float* out, ptrdiff_t out_stride) {
    dot_tile<V, typename Cache::template Pairs<V>, kVectors, kQueries>(streams, lanes, queries, head_dim, ahead, out,
                                                                       out_stride);
  }

  // Stores weights p in the place of scores[i, i + kLanes), and adds them up.
  class Weights {
   public:
    void store(float* scores, int i, Vec::F p) {
      Vec::store(scores + i, p);
      sum_ = Vec::add(sum_, p);
    }
    float sum() const { return Vec::sum(sum_); }

   private:
    Vec::F sum_ = Vec::zero();
  };

  // sums[v][q] += p[q] times elements i + v * kLanes on of the pair's first token, then of its second. weights[q]:
  // where the weights of query q begin, `at`: of the pair's first position among them.
  template <Seen kSeen, bool kFull, int kVectors, int kQueries>
  __attribute__((always_inline)) static void add_pair(const uint8_t* pair, int head_dim, int i, int n,
                                                      const float* const (&weights)[kQueries], int at,
                                                      ValueSums<kVectors, kQueries>& sums) {
    if constexpr (kSeen != Seen::kSecond) {
      add_token<kFirstOfPair, kFull, kVectors, kQueries>(pair, head_dim, i, n, weights, at, sums);
    }
    if constexpr (kSeen != Seen::kFirst) {
      add_token<kSecondOfPair, kFull, kVectors, kQueries>(pair, head_dim, i, n, weights, at + 1, sums);
    }
  }

 private:
  template <Token kToken, bool kFull, int kVectors, int kQueries>
  __attribute__((always_inline)) static void add_token(const uint8_t* pair, int head_dim, int i, int n,
                                                       const float* const (&weights)[kQueries], int at,
                                                       ValueSums<kVectors, kQueries>& sums) {
    Vec::F value[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      value[v] = Cache::template load_value<kToken, kFull>(pair, head_dim, i + v * Vec::kLanes, n);
    }
#pragma GCC unroll 16
    for (int q = 0; q < kQueries; ++q) {
      const Vec::F weight = Vec::set1(weights[q][at]);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sums[v][q] = Vec::fma(weight, value[v], sums[v][q]);
    }
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
// before anything reads them; their values are never multiplied into anything.

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
  int stride;     // floats of one p V
  float* maxima;  // [kQueryTile][segments]
  float* sums;    // [kQueryTile][segments]
  float* values;  // [segments][kQueryTile][stride]: p V

  float* query_values(int segment, int q) const {
    const ptrdiff_t row = static_cast<ptrdiff_t>(segment - first_segment) * kQueryTile + q;
    return values + row * stride;
  }
};

[[maybe_unused]] size_t attention_partial_floats(int context_len, int head_dim) {
  const size_t segments = static_cast<size_t>(round_up(context_len, kSegment) / kSegment);
  return segments * kQueryTile * static_cast<size_t>(2 + round_up(head_dim, Vec::kLanes));
}

Partials partials_of(const AttentionTask& task, const AttentionItem& item, float* memory) {
  const int first = seen_by(task, item, 0).begin / kSegment;
  const int segments = (seen_by(task, item, item.query_count - 1).end - 1) / kSegment - first + 1;
  float* sums = memory + kQueryTile * segments;
  return {first, segments, round_up(task.head_dim, Vec::kLanes), memory, sums, sums + kQueryTile * segments};
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
  int sum_stride;        // floats of a query's sums
  float* scores;         // [kQueryTile][kSegment]
  float* sums;           // [kQueryTile][sum_stride]: p V
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
  float* query_sums(int q) const { return sums + static_cast<ptrdiff_t>(q) * sum_stride; }
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

template <typename V, typename Math, int kVectors, int kQueries>
void score_vectors(const Context& context, const typename Math::Query* const* queries, int first_vector) {
  const AttentionTask& task = context.task;
  const uint8_t* streams[kVectors];
  KeysAhead<V, kVectors> ahead;
  for (int v = 0; v < kVectors; ++v) {
    const int position = context.base + (first_vector + v) * V::kLanes;
    const int next = position + kVectors * V::kLanes;
    streams[v] = context.block(position) + context.in_block(position) * Math::kKeyBytes;
    ahead.next[v] = next < context.end
                        ? context.block(next) + context.in_block(next) * Math::kKeyBytes
                        : context.block(min_of(context.base + v * V::kLanes, context.end - 1)) + context.keys_bytes;
  }
  float* scores = context.scores + first_vector * V::kLanes;
  Math::template multiply_keys<V, kVectors, kQueries>(streams, task.block_size, queries, task.head_dim, ahead, scores,
                                                      kSegment);
  if constexpr (Math::kHasScales) multiply_by_scales<V>(context, first_vector, first_vector + kVectors, kKeyScales);
}

// The largest power of two in `limit`: of vectors of a tile, so that whole tiles fill a segment or a head.
constexpr int power_of_two_in(int limit) { return limit >= 4 ? 4 : limit >= 2 ? 2 : 1; }

// Vectors [vector, end_vector) of positions, in tiles of kVectors and then of less.
template <typename V, typename Math, int kVectors, int kQueries>
void score_span(const Context& context, const typename Math::Query* const* queries, int vector, int end_vector) {
  for (; vector + kVectors <= end_vector; vector += kVectors) {
    score_vectors<V, Math, kVectors, kQueries>(context, queries, vector);
  }
  if constexpr (kVectors > 1) {
    if (vector < end_vector) score_span<V, Math, kVectors / 2, kQueries>(context, queries, vector, end_vector);
  }
}

// scores[q][position - base] = q . k for every position of the segment up to the last that any query sees.
template <typename V, typename Math>
void compute_scores(const Context& context, const typename Math::Query* const* queries) {
  with_count<kQueryTile>(context.item.query_count, [&](auto count) {
    constexpr int kQueries = decltype(count)::value;
    constexpr int kVectors = power_of_two_in(vectors_for(kQueries, 1, Math::kOperandsPerKeyVector));
    score_span<V, Math, kVectors, kQueries>(context, queries, 0, vectors_of<V>(context));
  });
}

// The scores of query q, from a vector's begin to a vector's end.
Span whole_vectors(const Context& context, int q) {
  return {(context.seen[q].begin - context.base) / Vec::kLanes * Vec::kLanes,
          round_up(context.seen[q].end - context.base, Vec::kLanes)};
}

// The softmax is of scores times this: of what the soft cap has bent, where there is one.
float scale_of_scores(const AttentionTask& task) { return task.soft_cap != nullptr ? *task.soft_cap : task.scale; }

// Bends query q's scores by the soft cap, makes those that it does not see -infinity; returns the largest, scaled.
float find_maximum(const Context& context, int q) {
  constexpr float kLowest = -3.402823466e38f;  // -infinity can be subtracted from it
  const AttentionTask& task = context.task;
  const Span span = whole_vectors(context, q);
  float* scores = context.query_scores(q);
  if (task.soft_cap != nullptr) {
    const Vec::F bend = Vec::set1(task.scale / *task.soft_cap);
    for (int i = span.begin; i < span.end; i += Vec::kLanes) {
      Vec::store(scores + i, tanh(Vec::mul(Vec::load(scores + i), bend)));
    }
  }
  for (int i = span.begin; i < context.seen[q].begin - context.base; ++i) scores[i] = -__builtin_inff();
  for (int i = context.seen[q].end - context.base; i < span.end; ++i) scores[i] = -__builtin_inff();
  Vec::F largest = Vec::set1(kLowest);
  for (int i = span.begin; i < span.end; i += Vec::kLanes) largest = Vec::max(Vec::load(scores + i), largest);
  return max_of(kLowest, Vec::largest(largest) * scale_of_scores(task));
}

// Turns query q's scores into weights p = e^(scale * score - maximum); returns their sum.
template <typename Math>
float exponentiate(const Context& context, int q, float maximum) {
  const Span span = whole_vectors(context, q);
  const Vec::F scale = Vec::set1(scale_of_scores(context.task));
  const Vec::F offset = Vec::set1(-maximum);
  float* scores = context.query_scores(q);
  typename Math::Weights weights;
  for (int i = span.begin; i < span.end; i += Vec::kLanes) {
    weights.store(scores, i, exp(Vec::fma(Vec::load(scores + i), scale, offset)));
  }
  return weights.sum();
}

// A tile of p V while it grows: kVectors vectors of elements, from element i on, of kQueries queries.
template <typename Math, int kVectors, int kQueries, bool kFull>
class ValueTile {
 public:
  // n: as in load_value()
  __attribute__((always_inline)) ValueTile(const Context& context, int first_query, int i, int n)
      : context_(context), first_query_(first_query), i_(i), n_(n) {
#pragma GCC unroll 16
    for (int q = 0; q < kQueries; ++q) {
      weights_[q] = context.query_scores(first_query + q);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sums_[v][q] = Vec::load(stored_sums(q, v));
    }
  }

  // `jump`: from this pair to what is fetched ahead, as many bytes.
  template <Seen kSeen>
  __attribute__((always_inline)) void add(const uint8_t* pair, int position, ptrdiff_t jump) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) Vec::prefetch_far(pair + jump + (i_ + v * Vec::kLanes) * 2 * Math::kBytes);
    Math::template add_pair<kSeen, kFull, kVectors, kQueries>(pair, context_.task.head_dim, i_, n_, weights_,
                                                              position - context_.base, sums_);
  }

  __attribute__((always_inline)) void store() const {
#pragma GCC unroll 16
    for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) Vec::store(stored_sums(q, v), sums_[v][q]);
    }
  }

 private:
  float* stored_sums(int q, int v) const { return context_.query_sums(first_query_ + q) + i_ + v * Vec::kLanes; }

  const Context& context_;
  const int first_query_;
  const int i_;
  const int n_;
  const float* weights_[kQueries];
  ValueSums<kVectors, kQueries> sums_;
};

// sums[q][i] += p[q][j] * v[j][i] over positions j of `span`, ascending, for the elements of a tile.
template <typename Math, int kVectors, int kQueries, bool kFull>
void add_values_tile(const Context& context, int first_query, Span span, int i, int n) {
  const int block_size = context.task.block_size;
  const ptrdiff_t pair_bytes = static_cast<ptrdiff_t>(context.task.head_dim) * 2 * Math::kBytes;
  ValueTile<Math, kVectors, kQueries, kFull> tile(context, first_query, i, n);
  for (int position = span.begin; position < span.end;) {
    const int in_block = context.in_block(position);
    const int block_end = min_of(span.end, position - in_block + block_size);
    const ptrdiff_t value_at = context.keys_bytes + in_block / 2 * pair_bytes;
    const uint8_t* pair = context.block(position) + value_at;
    const ptrdiff_t jump = context.after_values(position + kValuesAhead, value_at) - pair;
    if (position % 2 != 0) {
      tile.template add<Seen::kSecond>(pair, position - 1, jump);
      position += 1;
      pair += pair_bytes;
    }
    for (; position + 2 <= block_end; position += 2, pair += pair_bytes) {
      tile.template add<Seen::kBoth>(pair, position, jump);
    }
    if (position < block_end) {
      tile.template add<Seen::kFirst>(pair, position, jump);
      position += 1;
    }
  }
  tile.store();
}

// Elements [i, head_dim), in tiles of kVectors vectors and then of less.
template <typename Math, int kVectors, int kQueries>
void add_values_from(const Context& context, int first_query, Span span, int i) {
  const int head_dim = context.task.head_dim;
  for (; i + kVectors * Vec::kLanes <= head_dim; i += kVectors * Vec::kLanes) {
    add_values_tile<Math, kVectors, kQueries, true>(context, first_query, span, i, Vec::kLanes);
  }
  if (i == head_dim) return;
  if constexpr (kVectors > 1) {
    add_values_from<Math, kVectors / 2, kQueries>(context, first_query, span, i);
  } else {
    add_values_tile<Math, 1, kQueries, false>(context, first_query, span, i, head_dim - i);
  }
}

// The same for whole heads of queries [first_query, first_query + count).
template <typename Math>
void add_values(const Context& context, int first_query, int count, Span span) {
  if (span.empty()) return;
  with_count<kQueryTile>(count, [&](auto queries) {
    constexpr int kQueries = decltype(queries)::value;
    constexpr int kVectors = power_of_two_in((kRegisters - 2) / (kQueries + 1));  // sums, one operand each, a broadcast
    add_values_from<Math, kVectors, kQueries>(context, first_query, span, 0);
  });
}

// Queries of an item see different spans. What all of them see is read once for all; the ragged ends belong to one
// query each, so that a value is multiplied only into rows that see it. A pair of positions that only some queries see
// as a whole belongs to the ends.
//
//   query 0   |----------------|
//   query 1     |----------------|
//   query 2       |----------------|
//             own |   shared   | own
template <typename Math>
void add_all_values(const Context& context) {
  const int count = context.item.query_count;
  memset(context.sums, 0, static_cast<size_t>(count * context.sum_stride) * sizeof(float));
  const Span& first = context.seen[0];
  const Span& last = context.seen[count - 1];
  Span shared{last.begin, first.end};
  if (shared.empty()) {
    for (int q = 0; q < count; ++q) add_values<Math>(context, q, 1, context.seen[q]);
    return;
  }
  if (first.begin != last.begin) shared.begin = round_up(shared.begin, 2);
  if (first.end != last.end) shared.end = shared.end / 2 * 2;
  for (int q = 0; q < count; ++q) add_values<Math>(context, q, 1, {context.seen[q].begin, shared.begin});
  add_values<Math>(context, 0, count, shared);
  for (int q = 0; q < count; ++q) add_values<Math>(context, q, 1, {shared.end, context.seen[q].end});
}

template <typename V, typename Math>
void attend(const Context& context, const typename Math::Query* const* prepared, float* maxima, float* sums,
            int stride) {
  compute_scores<V, Math>(context, prepared);
  const int queries = context.item.query_count;
  for (int q = 0; q < queries; ++q) maxima[q * stride] = find_maximum(context, q);
  for (int q = 0; q < queries; ++q) sums[q * stride] = exponentiate<Math>(context, q, maxima[q * stride]);
  // The value's scale goes into p. Positions that a query does not see become anything, and are never read again.
  if constexpr (Math::kHasScales) multiply_by_scales<V>(context, 0, vectors_of<V>(context), kValueScales);
  add_all_values<Math>(context);
}

template <typename Math>
void attention_segment(const AttentionTask& task, const AttentionItem& item,
                       const typename Math::Query* const* prepared, int segment, const Partials& partials) {
  alignas(64) float scores[kQueryTile * kSegment];
  Context context{
      .task = task,
      .item = item,
      .block_shift = __builtin_ctz(static_cast<unsigned>(task.block_size)),
      .keys_bytes = static_cast<ptrdiff_t>(task.block_size) * task.head_dim * Math::kBytes,
      .item_begin = partials.first_segment * kSegment,
      .base = 0,
      .end = 0,
      .sum_stride = partials.stride,
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
    attend<Vec, Math>(context, prepared + first, partials.maxima + at, partials.sums + at, partials.segments);
  } else {
    attend<NarrowVec, Math>(context, prepared + first, partials.maxima + at, partials.sums + at, partials.segments);
  }
}

template <typename Math>
void attention(const AttentionTask& task, const AttentionItem& item, int first_segment, int end_segment,
               float* partials) {
  const Partials results = partials_of(task, item, partials);
  typename Math::Room room;
  const typename Math::Query* prepared[kQueryTile];
  for (int q = 0; q < item.query_count; ++q) {
    const float* query = task.queries + query_row(task, item, q) * task.query_stride + query_column(task, item, q);
    prepared[q] = Math::prepare_query(query, task.head_dim, room, q);
  }
  for (int segment = first_segment; segment < end_segment; ++segment) {
    attention_segment<Math>(task, item, prepared, segment, results);
  }
}

// Turns the maxima of a query's segments into their weights e^(m - M), and returns 1 / sum of weight * l.
float weigh_segments(float* maxima, const float* sums, int segments) {
  float maximum = maxima[0];
  for (int s = 1; s < segments; ++s) maximum = max_of(maximum, maxima[s]);
  float sum = 0.0f;
  for_vectors(segments, [&](int first, int n) {
    // Stored whole: a processor waits when it reads from part of a masked store.
    float weights[Vec::kLanes];
    Vec::store(weights, exp(Vec::sub(load(maxima + first, n), Vec::set1(maximum))));
    for (int i = 0; i < n; ++i) {
      maxima[first + i] = weights[i];
      sum += weights[i] * sums[first + i];
    }
  });
  return 1.0f / sum;
}

[[maybe_unused]] void finish_attention(const AttentionTask& task, const AttentionItem& item, float* partials) {
  const Partials results = partials_of(task, item, partials);
  for (int q = 0; q < item.query_count; ++q) {
    const Span seen = seen_by(task, item, q);
    const int first = seen.begin / kSegment;
    const int segments = (seen.end - 1) / kSegment - first + 1;
    const int at = q * results.segments + first - results.first_segment;
    float* weights = results.maxima + at;
    const Vec::F inverse = Vec::set1(weigh_segments(weights, results.sums + at, segments));
    float* out = task.out + query_row(task, item, q) * task.out_stride + query_column(task, item, q);
    for_vectors(task.head_dim, [&](int i, int n) {
      Vec::F sum = Vec::zero();
      for (int s = 0; s < segments; ++s) {
        sum = Vec::fma(Vec::set1(weights[s]), Vec::load(results.query_values(first + s, q) + i), sum);
      }
      store(out + i, Vec::mul(sum, inverse), n);
    });
  }
}

}  // namespace
}  // namespace llmsrv::cpu::LLMSRV_ISA
