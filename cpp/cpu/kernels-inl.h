// The one source of all kernels, with what it includes; compiled once per instruction set. The including file defines
// LLMSRV_ISA and, inside namespace llmsrv::cpu::LLMSRV_ISA:
//   Vec, NarrowVec   vectors (vec_*.h); NarrowVec has at most 8 lanes
//   kRegisters       vector registers of the machine; tiles are sized to stay inside
//   kTokenTile       most rows of activations that one pass over a panel serves
//   kQueryTile       most queries of an attention item
//
// Orders of summation, which promise P3 rests on:
//   dot products   one lane and one chain per output, k ascending
//   attention      as attention-inl.h says
// None of them sees how many other rows or queries a tile holds.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cpp/cpu/attention-inl.h"
#include "cpp/cpu/dot_tile-inl.h"
#include "cpp/cpu/kernels.h"
#include "cpp/cpu/vector_math-inl.h"

namespace llmsrv::cpu::LLMSRV_ISA {
namespace {

// --- linear ---------------------------------------------------------------------------------------------------------

constexpr int kPanelRows = 16;
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
//         values [block_size / 2][head_dim][2]  tokens 2t and 2t + 1 of an element
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
  for (int i = 0; i < half; ++i) {
    const uint32_t pair = bf16_bits(key[2 * i]) | bf16_bits(key[2 * i + 1]) << 16;
    memcpy(key_at + static_cast<ptrdiff_t>(i) * block_size * 4, &pair, sizeof(pair));
  }
  // Another thread may write the other token of a pair at the same time: a store is no wider than an element.
  uint8_t* value_at = head_block + (block_size + offset / 2 * 2) * head_dim * 2 + offset % 2 * 2;
  for (int i = 0; i < head_dim; ++i) {
    const auto element = static_cast<uint16_t>(bf16_bits(value[i]));
    memcpy(value_at + i * 4, &element, sizeof(element));
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
    .attention_bf16 = attention<Fma<Bf16Cache>>,
    .attention_f32 = attention<Fma<F32Cache>>,
    .attention_int8 = attention<Fma<Int8Cache>>,
    .finish_attention = finish_attention,
};

}  // namespace llmsrv::cpu::LLMSRV_ISA
