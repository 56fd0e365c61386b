// The one source of the kernels for packed integer weights (int8_kernels.h), compiled once per instruction set. The
// including file defines LLMSRV_ISA and, inside namespace llmsrv::cpu::LLMSRV_ISA:
//   Vec           int8_vec_*.h
//   kTokenTile    most tokens of a tile
//   kMostChains   integer accumulators that a small tile may use at a time: all that it has,
//   kChains       else this many
//
// One tile is Vec::kLanes rows of a panel x up to kTokenTile tokens, those of one tile of activations. Per group of 32
// columns it unpacks the weights once, into 8 vectors that stay in registers (or reads them from where they were
// unpacked for many tiles), and then for each token adds 8 dot products of four bytes, turns the integer sum into a
// float and adds it, scaled, to the token's accumulator. Each weight is read from memory once per call and from the
// first level cache once per tile of tokens.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cpp/cpu/int8_kernels.h"
#include "cpp/quant/packed_layout.h"

namespace llmsrv::cpu::LLMSRV_ISA {
namespace {

using F = Vec::F;
using I = Vec::I;

using packed::kGroupCols;
using packed::kLineBytes;
using packed::kPanelRows;

constexpr int kGroupVectors = 8;  // vector v of a group holds columns 4 v .. 4 v + 3

template <typename T>
constexpr T min_of(T a, T b) {
  return a < b ? a : b;
}

// --- formats --------------------------------------------------------------------------------------------------------

// value = scale * (q - kZeroPoint), or scale * q + min where the layout has minimums.
template <packed::Superblock kLayout, int kQuantBits, int kZeroPoint>
struct Format {
  static constexpr packed::Superblock kBlock = kLayout;
  static constexpr int kBits = kQuantBits;
  static constexpr int kLargest = (1 << kBits) - 1;
  static constexpr int kZero = kZeroPoint;
  static constexpr bool kHasMin = kBlock.d > kBlock.mins;
  static constexpr bool kTwoLevel = kBlock.bytes > kBlock.d;
  static constexpr bool kHasHalves = kTwoLevel && !kHasMin;  // each half of a group has an integer scale of its own
};
using U4 = Format<packed::kU4, 4, 0>;
using U4G64 = Format<packed::kU4G64, 4, 0>;
using U4G128 = Format<packed::kU4G128, 4, 0>;
using U4Zero = Format<packed::kU4Zero, 4, 8>;
using U5 = Format<packed::kU5, 5, 0>;
using U5Zero = Format<packed::kU5Zero, 5, 16>;
using S8 = Format<packed::kS8, 8, 128>;
using U4K = Format<packed::kU4K, 4, 0>;
using U5K = Format<packed::kU5K, 5, 0>;
using U6K = Format<packed::kU6K, 6, 32>;

// One group of a panel's rows, as all tokens use it.
struct GroupWeights {
  I w[kGroupVectors];
  F scale;
  F min;            // of formats that have one
  I half_scale[2];  // likewise
};

// The integers. `rows` is the first of the vector's rows in the panel: 0 where a vector holds them all.
template <typename Format>
__attribute__((always_inline)) inline void unpack_quants(const uint8_t* block, int group, int rows,
                                                         I (&w)[kGroupVectors]) {
  constexpr packed::Superblock kBlock = Format::kBlock;
  const uint8_t* lines = block + group * kBlock.low_group_bytes + rows * 4;
  if constexpr (Format::kBits == 8) {
#pragma GCC unroll 8
    for (int v = 0; v < kGroupVectors; ++v) w[v] = Vec::load_line(lines + v * kLineBytes);
  } else {
#pragma GCC unroll 4
    for (int line = 0; line < 4; ++line) {
      const I nibbles = Vec::load_line(lines + line * kLineBytes);
      w[line] = Vec::low_nibbles(nibbles);
      w[line + 4] = Vec::high_nibbles(nibbles);
    }
  }
  const uint8_t* high = block + kBlock.high + group * kBlock.high_group_bytes;
  if constexpr (Format::kBits == 5) {
#pragma GCC unroll 8
    for (int v = 0; v < kGroupVectors; ++v) w[v] = Vec::add_fifth_bit(w[v], high + v * 8 + rows / 2);
  }
  if constexpr (Format::kBits == 6) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const I plane = Vec::load_line(high + half * kLineBytes + rows * 4);
      I* v = w + 4 * half;
      v[0] = Vec::template add_high_pair<0>(v[0], plane);
      v[1] = Vec::template add_high_pair<1>(v[1], plane);
      v[2] = Vec::template add_high_pair<2>(v[2], plane);
      v[3] = Vec::template add_high_pair<3>(v[3], plane);
    }
  }
}

template <typename Format>
__attribute__((always_inline)) inline GroupWeights unpack_group(const uint8_t* block, int group, int rows) {
  constexpr packed::Superblock kBlock = Format::kBlock;
  constexpr int kF16Row = 2;
  GroupWeights weights;
  unpack_quants<Format>(block, group, rows, weights.w);
  const int here = group / kBlock.groups_per_scale * kPanelRows + rows;
  if constexpr (!Format::kTwoLevel) {
    weights.scale = Vec::load_f16(block + kBlock.scales + here * kF16Row);
    if constexpr (Format::kHasMin) weights.min = Vec::load_f16(block + kBlock.mins + here * kF16Row);
    return weights;
  }
  const F d = Vec::load_f16(block + kBlock.d + rows * kF16Row);
  if constexpr (Format::kHasHalves) {
    weights.scale = d;
    const uint8_t* scales = block + kBlock.scales + group * 2 * kPanelRows + rows;
    weights.half_scale[0] = Vec::load_i8(scales);
    weights.half_scale[1] = Vec::load_i8(scales + kPanelRows);
  } else if constexpr (Format::kTwoLevel) {
    const F d_min = Vec::load_f16(block + kBlock.d_min + rows * kF16Row);
    weights.scale = Vec::mul(d, Vec::to_float(Vec::load_u8(block + kBlock.scales + here)));
    const F min = Vec::mul(d_min, Vec::to_float(Vec::load_u8(block + kBlock.mins + here)));
    weights.min = Vec::sub(Vec::zero(), min);
  }
  return weights;
}

// --- one tile -------------------------------------------------------------------------------------------------------

// One group of columns of a tile's tokens. Dense for any height: the activations of a small step stay in the first
// level cache, beside the stream of weights.
template <int kTokens>
struct ActivationGroup {
  int8_t q[kTokens][kGroupCols];
  float d[kTokens];           // x = d q
  float d_sum[kTokens];       // d * (sum of q)
  int32_t low_sum[kTokens];   // of q[0..15]
  int32_t high_sum[kTokens];  // of q[16..31]
};
static_assert(sizeof(ActivationGroup<3>) == 3 * kActivationBytes);

// sums[t] = isum of token first + t.
template <typename Format, int kTokens, int kCount>
__attribute__((always_inline)) inline void sum_group(const GroupWeights& weights, const ActivationGroup<kTokens>& x,
                                                     int first, I (&sums)[kCount]) {
  if constexpr (Format::kHasHalves) {
    constexpr int kHalf = kGroupVectors / 2;
    I high[kCount];
#pragma GCC unroll 16
    for (int t = 0; t < kCount; ++t) {
      sums[t] = Vec::broadcast(-Format::kZero * x.low_sum[first + t]);
      high[t] = Vec::broadcast(-Format::kZero * x.high_sum[first + t]);
    }
    Vec::template add_dots<Format::kLargest, kHalf>(weights.w, x.q[first], sums);
    Vec::template add_dots<Format::kLargest, kHalf>(weights.w + kHalf, x.q[first] + kGroupCols / 2, high);
#pragma GCC unroll 16
    for (int t = 0; t < kCount; ++t) {
      sums[t] = Vec::add(Vec::mul(sums[t], weights.half_scale[0]), Vec::mul(high[t], weights.half_scale[1]));
    }
  } else {
#pragma GCC unroll 16
    for (int t = 0; t < kCount; ++t) {
      sums[t] = Vec::broadcast(-Format::kZero * (x.low_sum[first + t] + x.high_sum[first + t]));
    }
    Vec::template add_dots<Format::kLargest, kGroupVectors>(weights.w, x.q[first], sums);
  }
}

// acc[t] += the group's share of token t, for t from kBegin on, at most as many tokens at a time as there are chains.
template <typename Format, int kTokens, int kBegin = 0>
__attribute__((always_inline)) inline void add_group(const GroupWeights& weights, const ActivationGroup<kTokens>& x,
                                                     F (&acc)[kTokens]) {
  constexpr int kChainsPerToken = Format::kHasHalves ? 2 : 1;
  constexpr int kMost = (kTokens * kChainsPerToken <= kMostChains ? kMostChains : kChains) / kChainsPerToken;
  constexpr int kSteps = (kTokens - kBegin + kMost - 1) / kMost;
  constexpr int kCount = (kTokens - kBegin + kSteps - 1) / kSteps;
  I sums[kCount];
  sum_group<Format>(weights, x, kBegin, sums);
#pragma GCC unroll 16
  for (int t = 0; t < kCount; ++t) {
    const int token = kBegin + t;
    F& sum = acc[token];
    sum = Vec::fma(Vec::to_float(sums[t]), Vec::mul(weights.scale, Vec::set1(x.d[token])), sum);
    if constexpr (Format::kHasMin) sum = Vec::fma(weights.min, Vec::set1(x.d_sum[token]), sum);
  }
  if constexpr (kBegin + kCount < kTokens) add_group<Format, kTokens, kBegin + kCount>(weights, x, acc);
}

// Fetches a group's part of what stands kDistance bytes after its superblock: weights are one stream over all panels of
// a share.
template <typename Format>
__attribute__((always_inline)) inline void fetch_ahead(const uint8_t* block, int group) {
  constexpr ptrdiff_t kDistance = 11 * 1024;
  constexpr int kLines = Format::kBlock.bytes / kLineBytes;
  constexpr int kLinesPerGroup = (kLines + Format::kBlock.groups - 1) / Format::kBlock.groups;
  const uint8_t* at = block + kDistance + group * kLines / Format::kBlock.groups * kLineBytes;
#pragma GCC unroll 16
  for (int line = 0; line < kLinesPerGroup; ++line) Vec::prefetch(at + line * kLineBytes);
}

// Where the results of a tile go: rows first_row .. of tokens first_token ..
struct TilePlace {
  int first_token;
  int tokens;
  int first_row;
};

// Adds the bias, and what `out` holds already; writes only what exists.
template <int kTokens>
__attribute__((always_inline)) inline void finish_tile(const Int8LinearTask& task, const TilePlace& place,
                                                       const F (&acc)[kTokens]) {
  const int left = task.rows - place.first_row;
  float* out = task.out + place.first_token * task.out_stride + place.first_row;
  if (left >= Vec::kLanes) {
    const F bias = task.bias != nullptr ? Vec::load(task.bias + place.first_row) : Vec::zero();
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t, out += task.out_stride) {
      if (t >= place.tokens) return;
      const F value = Vec::add(acc[t], bias);
      Vec::store(out, task.add ? Vec::add(Vec::load(out), value) : value);
    }
  } else if (left > 0) {
    const F bias = task.bias != nullptr ? Vec::load_partial(task.bias + place.first_row, left) : Vec::zero();
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t, out += task.out_stride) {
      if (t >= place.tokens) return;
      const F value = Vec::add(acc[t], bias);
      Vec::store_partial(out, task.add ? Vec::add(Vec::load_partial(out, left), value) : value, left);
    }
  }
}

// The sums of a tile over all groups, for the panel's rows `rows` ..
// Not inlined: among the callers' variables the compiler would keep accumulators in memory.
template <typename Format, int kTokens>
__attribute__((noinline)) void sum_tile(const Int8LinearTask& task, const TilePlace& place, const uint8_t* panel,
                                        int rows, bool fetch, const ActivationGroup<kTokens>* x) {
  F acc[kTokens];
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) acc[t] = Vec::zero();
  for (int groups = task.groups; groups > 0; groups -= Format::kBlock.groups, panel += Format::kBlock.bytes) {
    const int here = min_of(groups, Format::kBlock.groups);
#pragma GCC unroll 1
    for (int group = 0; group < here; ++group, ++x) {
      if (fetch) fetch_ahead<Format>(panel, group);
      add_group<Format>(unpack_group<Format>(panel, group, rows), *x, acc);
    }
  }
  finish_tile(task, place, acc);
}

// The same for some groups, which are unpacked already. `carry`: [kTokens][Vec::kLanes], sums of the groups before and
// after.
template <typename Format, int kTokens>
__attribute__((noinline)) void sum_unpacked(const Int8LinearTask& task, const TilePlace& place, int first_group,
                                            int groups, const GroupWeights* weights, const ActivationGroup<kTokens>* x,
                                            float* carry) {
  F acc[kTokens];
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) acc[t] = first_group == 0 ? Vec::zero() : Vec::load(carry + t * Vec::kLanes);
#pragma GCC unroll 1
  for (int group = 0; group < groups; ++group) add_group<Format>(weights[group], x[first_group + group], acc);
  if (first_group + groups == task.groups) return finish_tile(task, place, acc);
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) Vec::store(carry + t * Vec::kLanes, acc[t]);
}

// --- linear ---------------------------------------------------------------------------------------------------------

// Tile heights are compiled for each number of tokens up to 8, and for multiples of 4 above.
constexpr int tile_height(int tokens) { return tokens <= 8 ? tokens : (tokens + 3) / 4 * 4; }

// Calls call(Height<tile_height(tokens)>{}).
template <int kHeight>
struct Height {
  static constexpr int value = kHeight;
};
template <int kHeight, typename Call>
void with_height(int tokens, const Call& call) {
  constexpr int kLower = kHeight > 8 ? kHeight - 4 : kHeight - 1;
  if constexpr (kLower > 0) {
    if (tokens <= kLower) return with_height<kLower>(tokens, call);
  }
  call(Height<kHeight>{});
}

// Where the activations of a tile stand.
ptrdiff_t tile_offset(int first_token, int groups) {
  return static_cast<ptrdiff_t>(first_token) * groups * static_cast<ptrdiff_t>(kActivationBytes);
}

// The tokens of one activation tile over one panel. A tile that is higher than its tokens computes rows that nobody
// reads. `is_first`: of the tiles that pass over the panel.
template <typename Format, int kTokens>
void linear_tile(const Int8LinearTask& task, int panel, int first_token, int tokens, bool is_first) {
  const uint8_t* weights = task.panels + task.panel_bytes * static_cast<size_t>(panel);
  const uint8_t* x = task.in + tile_offset(first_token, task.groups);
  for (int rows = 0; rows < kPanelRows; rows += Vec::kLanes) {
    // Who reads a line first fetches what follows: the first vector of the first tokens.
    const bool fetch = is_first && rows == 0;
    const TilePlace place{first_token, tokens, panel * kPanelRows + rows};
    sum_tile<Format>(task, place, weights, rows, fetch, reinterpret_cast<const ActivationGroup<kTokens>*>(x));
  }
}

constexpr int kBlockTokens = 256;
static_assert(kBlockTokens % kTokenTile == 0);
constexpr int kUnpackedGroups = 32;  // that stay in the first level cache while the tiles of a block pass by

// Groups [first, first + count) of a panel's rows `rows` .. Fetches the same of the next panel.
// REQUIRES: `first` begins a superblock
template <typename Format>
void unpack_groups(const Int8LinearTask& task, int panel, int first, int count, int rows, GroupWeights* weights) {
  constexpr packed::Superblock kBlock = Format::kBlock;
  const uint8_t* block =
      task.panels + task.panel_bytes * static_cast<size_t>(panel) + first / kBlock.groups * kBlock.bytes;
  for (int i = 0; i < count; i += kBlock.groups, block += kBlock.bytes) {
    const int here = min_of(kBlock.groups, count - i);
    for (int line = 0; line < kBlock.bytes; line += kLineBytes) Vec::prefetch_far(block + task.panel_bytes + line);
    for (int group = 0; group < here; ++group) weights[i + group] = unpack_group<Format>(block, group, rows);
  }
}

// Whole tiles of tokens over one panel, which is unpacked once for all of them, some groups at a time.
template <typename Format>
void linear_block(const Int8LinearTask& task, int panel, int first_token, int tokens) {
  alignas(64) float carry[kBlockTokens * Vec::kLanes];
  alignas(64) GroupWeights weights[kUnpackedGroups];
  for (int rows = 0; rows < kPanelRows; rows += Vec::kLanes) {
    for (int first = 0; first < task.groups; first += kUnpackedGroups) {
      const int count = min_of(kUnpackedGroups, task.groups - first);
      unpack_groups<Format>(task, panel, first, count, rows, weights);
      for (int t = 0; t < tokens; t += kTokenTile) {
        const uint8_t* x = task.in + tile_offset(first_token + t, task.groups);
        const TilePlace place{first_token + t, kTokenTile, panel * kPanelRows + rows};
        sum_unpacked<Format>(task, place, first, count, weights,
                             reinterpret_cast<const ActivationGroup<kTokenTile>*>(x), carry + t * Vec::kLanes);
      }
    }
  }
}

// Tokens go in blocks, so that the outputs of one panel, a line in each row, stay in the TLB's reach; panels come from
// the second level cache again for the next block. From two tiles on it is worth while to unpack a panel first; whole
// bytes are not packed.
template <typename Format>
void linear(const Int8LinearTask& task, int first, int end) {
  for (int block = 0; block < task.tokens; block += kBlockTokens) {
    const int block_end = min_of(block + kBlockTokens, task.tokens);
    const int whole = (block_end - block) / kTokenTile * kTokenTile;
    const int unpacked = Format::kBits < 8 && whole >= 2 * kTokenTile ? whole : 0;
    for (int panel = first; panel < end; ++panel) {
      if (unpacked > 0) linear_block<Format>(task, panel, block, unpacked);
      for (int token = block + unpacked; token < block_end; token += kTokenTile) {
        const int tokens = min_of(kTokenTile, block_end - token);
        with_height<kTokenTile>(tokens, [&](auto height) {
          linear_tile<Format, decltype(height)::value>(task, panel, token, tokens, token == block);
        });
      }
    }
  }
}

// --- activations ----------------------------------------------------------------------------------------------------

constexpr float kNearlyZero = 0x1p-100f;  // so that 127 / max|x| is finite
constexpr uint32_t kInfinityBits = 0x7f800000;

// Of one group of columns.
struct GroupScales {
  float d[kTokenTile];
  float factor[kTokenTile];  // 127 / max|x|, or 0 where q = 0
};

GroupScales scales_of(const float* x, ptrdiff_t x_stride, int tokens) {
  uint32_t bits[kTokenTile] = {};
  Vec::largest_magnitudes(x, x_stride, tokens, bits);
  float largest[kTokenTile];
  memcpy(largest, bits, sizeof(bits));
  GroupScales scales;
  for (int t = 0; t < kTokenTile; ++t) {
    const bool is_finite = bits[t] < kInfinityBits;
    const bool is_zero = largest[t] < kNearlyZero;
    const float d = is_zero ? 0.0f : largest[t] / 127.0f;
    const float factor = is_zero ? 0.0f : 127.0f / largest[t];
    scales.d[t] = is_finite ? d : __builtin_nanf("");
    scales.factor[t] = is_finite ? factor : 0.0f;
  }
  return scales;
}

// An ActivationGroup of `height` tokens, of which the first `tokens` exist. Rows that nobody reads are computed all the
// same, and what an earlier step left here could overflow: they are zero.
void quantize_record(const float* x, ptrdiff_t x_stride, int tokens, int height, uint8_t* record) {
  auto* q = reinterpret_cast<int8_t*>(record);
  auto* floats = reinterpret_cast<float*>(record + height * kGroupCols);
  auto* sums = reinterpret_cast<int32_t*>(floats + 2 * height);
  const GroupScales scales = scales_of(x, x_stride, tokens);
  for (int t = 0; t < tokens; ++t, x += x_stride) {
    if (const float factor = scales.factor[t]; factor != 0.0f) {
      Vec::round_to_bytes(x, factor, q + t * kGroupCols);
    } else {
      memset(q + t * kGroupCols, 0, kGroupCols);  // an infinity times 0 would be NaN
    }
  }
  if (tokens < height) memset(q + tokens * kGroupCols, 0, static_cast<size_t>(height - tokens) * kGroupCols);
  Vec::sum_halves(q, height, sums, sums + height);
  for (int t = 0; t < height; ++t) {
    floats[t] = scales.d[t];
    floats[height + t] = scales.d[t] * static_cast<float>(sums[t] + sums[height + t]);
  }
}

void quantize(const QuantizeTask& task, int first, int end) {
  for (int i = first; i < end; ++i) {
    const int first_token = i / task.groups * kTokenTile;
    const int group = i % task.groups;
    const int tokens = min_of(kTokenTile, task.tokens - first_token);
    const int height = tile_height(tokens);
    uint8_t* record =
        task.out + tile_offset(first_token, task.groups) + static_cast<ptrdiff_t>(kActivationBytes) * height * group;
    quantize_record(task.in + first_token * task.in_stride + group * kGroupCols, task.in_stride, tokens, height,
                    record);
  }
}

size_t activation_bytes(int tokens, int groups) {
  const int last = tokens % kTokenTile;
  return static_cast<size_t>(tile_offset(tokens - last + tile_height(last), groups));
}

}  // namespace

const Int8Table table = {
    .tile_tokens = kTokenTile,
    .activation_bytes = activation_bytes,
    .quantize = quantize,
    .linear_u4 = linear<U4>,
    .linear_u4_g64 = linear<U4G64>,
    .linear_u4_g128 = linear<U4G128>,
    .linear_u4_zero = linear<U4Zero>,
    .linear_u5 = linear<U5>,
    .linear_u5_zero = linear<U5Zero>,
    .linear_s8 = linear<S8>,
    .linear_u4k = linear<U4K>,
    .linear_u5k = linear<U5K>,
    .linear_u6k = linear<U6K>,
};

}  // namespace llmsrv::cpu::LLMSRV_ISA
