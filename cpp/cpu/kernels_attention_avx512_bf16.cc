// Attention over a bf16 cache on bf16 dot products (VDPBF16PS): two products per lane and instruction, on keys and
// values as they are stored, where FMA adds one of values that it has to unpack. The rest of attention is AVX-512's.
//
// Queries and weights p are rounded to bf16, to nearest even.
//   scores   a line of keys is 16 tokens x 2 elements; a query's 2 elements are broadcast, one dot per line and query
//   p V      a line of values is 16 elements x 2 tokens; a query's 2 weights are broadcast, one dot per line and query
//   l        is the sum of the rounded weights: what they multiply is then a true mean of values
//
// Orders of summation: as attention-inl.h, but in pairs of elements, or of positions (2t, 2t + 1): the instruction adds
// the odd one's product first. A lane of l is a pair of positions modulo 8. A position that a query does not see has
// the weight 0 and counts as the value 0, whatever stands there. Denormal inputs and results count as zero.
#define LLMSRV_ISA attention_avx512_bf16
#include "cpp/cpu/vec_avx512_bf16.h"

namespace llmsrv::cpu::LLMSRV_ISA {
namespace {
using Vec = Vec16Dots;
using NarrowVec = Vec8Dots;  // for blocks of 8 tokens
constexpr int kRegisters = 32;
constexpr int kQueryTile = 12;
}  // namespace
}  // namespace llmsrv::cpu::LLMSRV_ISA

#include "cpp/cpu/attention-inl.h"

namespace llmsrv::cpu::LLMSRV_ISA {
namespace {

constexpr int kWordBytes = 4;

struct Bf16Dots : Bf16Cache {
  using Query = uint8_t;  // words of two elements
  static constexpr int kOperandsPerKeyVector = 1;

  struct Room {
    alignas(64) uint8_t words[kQueryTile][kMostHeadDim / 2 * kWordBytes];
  };
  static const Query* prepare_query(const float* query, int head_dim, Room& room, int q) {
    uint8_t* words = room.words[q];
    for_vectors(head_dim, [&](int i, int n) {
      Vec::store_words(words + i / 2 * kWordBytes, Vec::round_to_words(load(query + i, n)));
    });
    return words;
  }

  template <typename V, int kVectors, int kQueries, typename Ahead>
  static void multiply_keys(const uint8_t* const* streams, int lanes, const Query* const* queries, int head_dim,
                            const Ahead& ahead, float* out, ptrdiff_t out_stride) {
    typename V::F sums[kVectors][kQueries];
#pragma GCC unroll 16
    for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sums[v][q] = V::zero();
    }
    const uint8_t* query[kQueries];
#pragma GCC unroll 16
    for (int q = 0; q < kQueries; ++q) query[q] = queries[q];
    const ptrdiff_t line_bytes = static_cast<ptrdiff_t>(lanes) * kWordBytes;
    ptrdiff_t offset = 0;
    for (int word = 0; word < head_dim / 2 * kWordBytes; word += kWordBytes, offset += line_bytes) {
      typename V::Words keys[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        keys[v] = V::load_words(streams[v] + offset);
        ahead(v, streams[v], offset);
      }
#pragma GCC unroll 16
      for (int q = 0; q < kQueries; ++q) {
        const typename V::Words elements = V::set1_word(query[q] + word);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) sums[v][q] = V::dot(sums[v][q], elements, keys[v]);
      }
    }
#pragma GCC unroll 16
    for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) V::store(out + q * out_stride + v * V::kLanes, sums[v][q]);
    }
  }

  // Weights take half the bytes of the scores that they replace, and are stored from the same place on.
  class Weights {
   public:
    void store(float* scores, int i, Vec::F p) {
      const NarrowVec::Words pairs = Vec::round_to_words(p);
      Vec::store_words(reinterpret_cast<uint8_t*>(scores) + i / 2 * kWordBytes, pairs);
      constexpr uint32_t kOnes = 0x3f803f80u;
      sum_ = NarrowVec::dot(sum_, pairs, NarrowVec::set1_word(reinterpret_cast<const uint8_t*>(&kOnes)));
    }
    float sum() const { return NarrowVec::sum(sum_); }

   private:
    NarrowVec::F sum_ = NarrowVec::zero();
  };

  template <Seen kSeen, bool kFull, int kVectors, int kQueries>
  __attribute__((always_inline)) static void add_pair(const uint8_t* pair, int, int i, int n,
                                                      const float* const (&weights)[kQueries], int at,
                                                      ValueSums<kVectors, kQueries>& sums) {
    Vec::Words values[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      values[v] = load_seen<kSeen, kFull>(pair + (i + v * Vec::kLanes) * kWordBytes, n);
    }
#pragma GCC unroll 16
    for (int q = 0; q < kQueries; ++q) {
      const Vec::Words p = Vec::set1_word(reinterpret_cast<const uint8_t*>(weights[q]) + at / 2 * kWordBytes);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sums[v][q] = Vec::dot(sums[v][q], p, values[v]);
    }
  }

 private:
  template <Seen kSeen, bool kFull>
  static Vec::Words load_seen(const uint8_t* from, int n) {
    const Vec::Words words = kFull ? Vec::load_words(from) : Vec::load_words_partial(from, n);
    if constexpr (kSeen == Seen::kFirst) return Vec::low_halves(words);
    if constexpr (kSeen == Seen::kSecond) return Vec::high_halves(words);
    return words;
  }
};

}  // namespace

void attention_bf16(const AttentionTask& task, const AttentionItem& item, int first_segment, int end_segment,
                    float* partials) {
  attention<Bf16Dots>(task, item, first_segment, end_segment, partials);
}

}  // namespace llmsrv::cpu::LLMSRV_ISA
