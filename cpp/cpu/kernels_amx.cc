// Linear layers on AMX tiles (TDPBF16PS), for bf16 weights. Everything else of this instruction set is AVX-512's.
//
// An activation is split into two bf16 numbers, x = hi + lo, exact to 2^-17 of x: products with bf16 weights are as
// good as float's, at two tile operations each. A tile step multiplies 16 tokens x 32 columns with 32 columns x 16
// output rows, whose layout is the packed panel's own (16 lines of 64 bytes).
//
// Order of summation, the same for any number of tokens: per output one chain over steps of 32 columns, ascending; in a
// step first hi, then lo. Tokens are rows of a tile, which do not see each other; missing ones are zero.
//
// Work of one call: panels [first, end) for all tokens. Tokens are split and stored as tiles in `scratch`, a block at a
// time that stays in the second level cache; then each pair of panels passes over the block, so that four accumulators
// hide the latency of a tile operation. Bytes moved: the panels once per block of tokens, scratch once per pair of
// panels.
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cpp/cpu/kernels.h"

namespace llmsrv::cpu::amx {
namespace {

constexpr int kTileTokens = 16;
constexpr int kStepCols = 32;
constexpr int kPanelRows = 16;
constexpr int kLineBytes = 64;
constexpr size_t kTileBytes = 1024;
constexpr int kTileFloats = 256;
constexpr size_t kBlockBytes = 512 * 1024;  // of split activations
constexpr int kMinBlockTiles = 2;

// Tile registers: accumulators 0..3, activations 4 and 5, weights 6 and 7. A row has 64 bytes; the weights have 16
// rows, the others one per token.
struct alignas(64) TileConfig {
  explicit TileConfig(int tokens) {
    for (int tile = 0; tile < 8; ++tile) rows[tile] = static_cast<uint8_t>(tile < 6 ? tokens : 16);
  }
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {};
};

// The compiler does not know that tile instructions read memory: what was stored before must be there now.
void finish_stores() { asm volatile("" ::: "memory"); }

int steps_for(int cols) { return (cols + kStepCols - 1) / kStepCols; }
size_t token_tile_bytes(int cols) { return static_cast<size_t>(steps_for(cols)) * 2 * kTileBytes; }
int block_tiles(int cols) {
  const int fitting = static_cast<int>(kBlockBytes / token_tile_bytes(cols));
  return fitting < kMinBlockTiles ? kMinBlockTiles : fitting;
}

// bf16 halves of 16 floats, in the low 16 bits of each word; rounds to nearest even.
__m512i to_bf16_words(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_srli_epi32(_mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000)), 16);
}

// Splits 16 columns of one token. Infinity and NaN stand in hi alone.
void split(__m512 x, uint8_t* hi, uint8_t* lo) {
  const __m512i high_words = to_bf16_words(x);
  const __m512 high = _mm512_castsi512_ps(_mm512_slli_epi32(high_words, 16));
  const __m512 rest = _mm512_sub_ps(x, high);
  const __mmask16 finite = _mm512_cmp_ps_mask(rest, rest, _CMP_ORD_Q);
  const __m512i low_words = _mm512_maskz_mov_epi32(finite, to_bf16_words(rest));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(hi), _mm512_cvtepi32_epi16(high_words));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lo), _mm512_cvtepi32_epi16(low_words));
}

// Tokens [first, first + tokens) as tiles: scratch[tile][step][hi, lo][token][32 columns]. Those up to `padded_tokens`
// are zero.
void split_tokens(const LinearTask& task, int first, int tokens, int padded_tokens, uint8_t* scratch) {
  const int steps = steps_for(task.cols);
  for (int t = 0; t < padded_tokens; ++t) {
    uint8_t* tile = scratch + token_tile_bytes(task.cols) * static_cast<size_t>(t / kTileTokens) +
                    static_cast<size_t>(t % kTileTokens * kLineBytes);
    const float* row = task.in + (first + (t < tokens ? t : 0)) * task.in_stride;
    for (int step = 0; step < steps; ++step, tile += 2 * kTileBytes) {
      for (int half = 0; half < 2; ++half) {
        const int column = step * kStepCols + half * 16;
        const int left = t < tokens ? task.cols - column : 0;
        const auto mask = static_cast<__mmask16>(left >= 16 ? 0xffffu : left > 0 ? (1u << left) - 1u : 0u);
        split(_mm512_maskz_loadu_ps(mask, row + (left > 0 ? column : 0)), tile + half * 32,
              tile + kTileBytes + half * 32);
      }
    }
  }
}

// Adds the bias, and what `out` holds already; writes only the tokens and rows that exist. sums: [16 tokens][16 rows]
void finish(const LinearTask& task, const float* sums, int first_token, int tokens, int panel) {
  const int column = panel * kPanelRows;
  const int left = task.rows - column;
  const auto mask = static_cast<__mmask16>(left >= kPanelRows ? 0xffffu : (1u << left) - 1u);
  const __m512 bias = task.bias == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, task.bias + column);
  for (int t = 0; t < tokens && t < kTileTokens; ++t) {
    float* out = task.out + (first_token + t) * task.out_stride + column;
    __m512 value = _mm512_load_ps(sums + t * kPanelRows);
    if (task.bias != nullptr) value = _mm512_add_ps(value, bias);
    if (task.add) value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), value);
    _mm512_mask_storeu_ps(out, mask, value);
  }
}

// Four accumulators hide the latency of a tile operation. What is missing at an edge is replaced by the first of its
// kind, and its result dropped.
//
// Two token tiles times two panels: accumulator 2 * tile + panel.
struct TwoTiles {
  static constexpr int kPanels = 2;
  const uint8_t* tokens[2];
  const uint8_t* panels[kPanels];

  void multiply() const {
    _tile_loadd(6, panels[0], kLineBytes);
    _tile_loadd(7, panels[1], kLineBytes);
    multiply_halves(0);
    multiply_halves(kTileBytes);
  }
  void advance() {
    tokens[0] += 2 * kTileBytes;
    tokens[1] += 2 * kTileBytes;
  }

 private:
  void multiply_halves(size_t half) const {
    _tile_loadd(4, tokens[0] + half, kLineBytes);
    _tile_loadd(5, tokens[1] + half, kLineBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
};

// One token tile times four panels, for few tokens: accumulator = panel. Four streams of weights keep memory busy.
struct OneTile {
  static constexpr int kPanels = 4;
  const uint8_t* tokens;
  const uint8_t* panels[kPanels];

  void multiply() const {
    _tile_loadd(4, tokens, kLineBytes);
    _tile_loadd(5, tokens + kTileBytes, kLineBytes);
    _tile_loadd(6, panels[0], kLineBytes);
    _tile_loadd(7, panels[1], kLineBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(0, 5, 6);
    _tile_dpbf16ps(1, 5, 7);
    _tile_loadd(6, panels[2], kLineBytes);
    _tile_loadd(7, panels[3], kLineBytes);
    _tile_dpbf16ps(2, 4, 6);
    _tile_dpbf16ps(3, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  void advance() { tokens += 2 * kTileBytes; }
};

// Weights are read once, in order: each stream is fetched kAheadBytes ahead, and from the end of its panel on in the
// panel that the next pair starts with. A prefetch of memory that is not ours does nothing.
constexpr size_t kAheadBytes = 4096;
void prefetch_step(const uint8_t* panel, size_t offset, size_t panel_bytes, int panels) {
  const size_t jump = offset + kAheadBytes < panel_bytes ? 0 : panel_bytes * static_cast<size_t>(panels - 1);
  for (int line = 0; line < kStepCols / 2; ++line) {
    _mm_prefetch(reinterpret_cast<const char*>(panel + kAheadBytes + jump + line * kLineBytes), _MM_HINT_T0);
  }
}

// All columns of one tile operation; sums: [accumulator][16 tokens][16 rows]. `cold`: the panels come from memory.
template <typename Operands>
void multiply(const LinearTask& task, Operands at, bool cold, float* sums) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const int whole_steps = task.cols / kStepCols;
  for (int step = 0; step < whole_steps; ++step) {
    for (const uint8_t* panel : at.panels) {
      if (cold) prefetch_step(panel, static_cast<size_t>(step) * kTileBytes, task.panel_bytes, Operands::kPanels);
    }
    at.multiply();
    at.advance();
    for (const uint8_t*& panel : at.panels) panel += kTileBytes;
  }
  if (task.cols % kStepCols != 0) {
    // The panel ends inside this step: what lies behind it must not be read, nor multiplied.
    alignas(64) uint8_t tail[Operands::kPanels][kTileBytes] = {};
    const size_t bytes = static_cast<size_t>((task.cols % kStepCols + 1) / 2) * kLineBytes;
    for (int i = 0; i < Operands::kPanels; ++i) {
      memcpy(tail[i], at.panels[i], bytes);
      at.panels[i] = tail[i];
    }
    finish_stores();
    at.multiply();
  }
  _tile_stored(0, sums, kLineBytes);
  _tile_stored(1, sums + kTileFloats, kLineBytes);
  _tile_stored(2, sums + 2 * kTileFloats, kLineBytes);
  _tile_stored(3, sums + 3 * kTileFloats, kLineBytes);
}

// Points `panels` at the panels from `first` on, at most up to `end`. How many there are.
template <int kPanels>
int point_at_panels(const LinearTask& task, int first, int end, const uint8_t* (&panels)[kPanels]) {
  const int count = end - first < kPanels ? end - first : kPanels;
  for (int i = 0; i < kPanels; ++i) {
    panels[i] = task.panels + task.panel_bytes * static_cast<size_t>(first + (i < count ? i : 0));
  }
  return count;
}

// Up to 16 tokens.
void multiply_few(const LinearTask& task, int first_panel, int end_panel, int first_token, int tokens,
                  const uint8_t* scratch, float* sums) {
  OneTile operands{scratch, {}};
  for (int panel = first_panel; panel < end_panel; panel += OneTile::kPanels) {
    const int panels = point_at_panels(task, panel, end_panel, operands.panels);
    multiply(task, operands, true, sums);
    for (int p = 0; p < panels; ++p) finish(task, sums + p * kTileFloats, first_token, tokens, panel + p);
  }
}

// Any number of tokens. Panels are the outer loop: each is read from memory once.
void multiply_many(const LinearTask& task, int first_panel, int end_panel, int first_token, int tokens,
                   const uint8_t* scratch, float* sums) {
  const int tiles = (tokens + kTileTokens - 1) / kTileTokens;
  TwoTiles operands{};
  for (int panel = first_panel; panel < end_panel; panel += TwoTiles::kPanels) {
    const int panels = point_at_panels(task, panel, end_panel, operands.panels);
    for (int tile = 0; tile < tiles; tile += 2) {
      const int tiles_here = tile + 1 < tiles ? 2 : 1;
      operands.tokens[0] = scratch + token_tile_bytes(task.cols) * static_cast<size_t>(tile);
      operands.tokens[1] = operands.tokens[0] + (tiles_here > 1 ? token_tile_bytes(task.cols) : 0);
      multiply(task, operands, tile == 0, sums);
      for (int i = 0; i < tiles_here; ++i) {
        const int token = first_token + (tile + i) * kTileTokens;
        for (int p = 0; p < panels; ++p) {
          finish(task, sums + (2 * i + p) * kTileFloats, token, first_token + tokens - token, panel + p);
        }
      }
    }
  }
}

}  // namespace

// Never less for fewer columns: what is reserved for the widest matrix serves all.
size_t linear_scratch_bytes(int cols) {
  const size_t smallest_block = token_tile_bytes(cols) * kMinBlockTiles;
  return smallest_block > kBlockBytes ? smallest_block : kBlockBytes;
}

void linear_bf16(const LinearTask& task, int first_panel, int end_panel, uint8_t* scratch) {
  const int block_tokens = block_tiles(task.cols) * kTileTokens;
  alignas(64) float sums[4 * kTileFloats];
  for (int first = 0; first < task.tokens; first += block_tokens) {
    const int tokens = task.tokens - first < block_tokens ? task.tokens - first : block_tokens;
    const bool few = tokens <= kTileTokens;
    const int padded_tokens = few ? tokens : (tokens + kTileTokens - 1) / kTileTokens * kTileTokens;
    const TileConfig config(few ? tokens : kTileTokens);
    split_tokens(task, first, tokens, padded_tokens, scratch);
    finish_stores();
    _tile_loadconfig(&config);
    const auto multiply_block = few ? multiply_few : multiply_many;
    multiply_block(task, first_panel, end_panel, first, tokens, scratch, sums);
  }
  _tile_release();
}

}  // namespace llmsrv::cpu::amx
