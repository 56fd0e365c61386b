// Linear layers on bf16 dot products (VDPBF16PS), for bf16 weights. Everything else of this instruction set is
// AVX-512's.
//
// Activations are rounded to bf16, to nearest even. One instruction then adds two products to each of 16 lanes, where
// FMA on unpacked weights adds one.
//
// One tile is up to 6 panels x up to 8 tokens, all sums in registers: lane = output row, register = (panel, token). Per
// pair of columns it loads one line of each panel (16 rows x 2 columns), broadcasts one word of each token (2 columns),
// and multiplies each with each: 3 panels x 8 tokens make 24 dot products from 11 loads.
//
// Order of summation, the same for any tile: per output one chain over pairs of columns, ascending; in a pair the
// instruction adds the odd column's product first, then the even one's. It rounds to nearest and takes denormal inputs
// and results for zero, whatever the thread's rounding mode is.
//
// Work of one call: panels [first, end) for all tokens. Tokens are rounded into `scratch`, a block at a time that stays
// in the second level cache; then each group of panels passes over the block. Bytes moved: the panels once per block of
// tokens, scratch once per group of panels.
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cpp/cpu/kernels.h"

namespace llmsrv::cpu::avx512_bf16 {
namespace {

constexpr int kPanelRows = 16;
constexpr int kLineBytes = 64;  // of a panel: 16 rows x 2 columns; of a token: 32 columns
constexpr int kLinePairs = 16;
constexpr int kLineCols = 32;
constexpr int kTileTokens = 8;
constexpr size_t kBlockBytes = 512 * 1024;  // of rounded activations
constexpr int kMinBlockTiles = 2;

// Panels of a tile: its sums, one line per panel and one broadcast stay in 32 registers. Few tokens are bound by
// memory, which many streams serve best; from 6 on, three streams that are fetched further ahead were fastest.
constexpr int panels_for(int tokens) { return tokens <= 3 ? 6 : tokens == 4 ? 5 : tokens == 5 ? 4 : 3; }

int lines_for(int cols) { return (cols + kLineCols - 1) / kLineCols; }
size_t tile_bytes(int cols, int tokens) { return static_cast<size_t>(lines_for(cols) * tokens) * kLineBytes; }
int block_tiles(int cols) {
  const int fitting = static_cast<int>(kBlockBytes / tile_bytes(cols, kTileTokens));
  return fitting < kMinBlockTiles ? kMinBlockTiles : fitting;
}

// The tokens of one block: [first, first + count), in tiles of equal height, so that none is nearly empty.
struct TokenBlock {
  TokenBlock(int first_token, int tokens) : first(first_token), count(tokens) {
    tiles = (count + kTileTokens - 1) / kTileTokens;
    height = (count + tiles - 1) / tiles;
  }
  int first;
  int count;
  int tiles;
  int height;
};

__m512 load_columns(const float* row, int column, int cols) {
  const int left = cols - column;
  if (left <= 0) return _mm512_setzero_ps();
  const auto mask = static_cast<__mmask16>(left >= 16 ? 0xffffu : (1u << left) - 1u);
  return _mm512_maskz_loadu_ps(mask, row + column);
}

// scratch[tile][line][token][32 columns]: what a tile reads is one stream. Columns and tokens that do not exist are
// zero.
void round_tokens(const LinearTask& task, const TokenBlock& block, uint8_t* scratch) {
  const int lines = lines_for(task.cols);
  for (int t = 0; t < block.tiles * block.height; ++t) {
    uint8_t* to = scratch + tile_bytes(task.cols, block.height) * static_cast<size_t>(t / block.height) +
                  static_cast<size_t>(t % block.height * kLineBytes);
    const int cols = t < block.count ? task.cols : 0;
    const float* row = task.in + (block.first + (t < block.count ? t : 0)) * task.in_stride;
    for (int line = 0; line < lines; ++line, to += block.height * kLineBytes) {
      const __m512 low = load_columns(row, line * kLineCols, cols);
      const __m512 high = load_columns(row, line * kLineCols + 16, cols);
      _mm512_store_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
  }
}

// Weights are read once, in order. Each stream is fetched into the second level cache so many bytes ahead (nearer ones
// are the hardware's task), and from the end of its panel on in the panel that the next tile starts with. A prefetch of
// memory that is not ours does nothing.
constexpr ptrdiff_t ahead_bytes(int tokens) { return tokens <= 5 ? 1024 : 4096; }

// Two columns of one token, in all lanes.
__m512bh broadcast_pair(const uint8_t* at) {
  int32_t word;
  memcpy(&word, at, sizeof(word));
  return (__m512bh)_mm512_set1_epi32(word);
}

// sums[t][v][row] = sum over columns of token t times row `row` of panel v, for kPanels neighbouring panels.
template <int kPanels, int kTokens>
void multiply(const uint8_t* panels, ptrdiff_t panel_bytes, const uint8_t* tokens, int cols, float* sums) {
  constexpr ptrdiff_t kAhead = ahead_bytes(kTokens);
  __m512 sum[kTokens][kPanels];
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 8
    for (int v = 0; v < kPanels; ++v) sum[t][v] = _mm512_setzero_ps();
  }
  const ptrdiff_t end = static_cast<ptrdiff_t>((cols + 1) / 2) * kLineBytes;
  ptrdiff_t offset = 0;
  while (offset < end) {
    const ptrdiff_t line_end = offset + kLinePairs * kLineBytes < end ? offset + kLinePairs * kLineBytes : end;
    for (const uint8_t* x = tokens; offset < line_end; offset += kLineBytes, x += 4) {
      const ptrdiff_t ahead = offset + kAhead + (offset + kAhead < end ? 0 : (kPanels - 1) * panel_bytes);
      __m512bh w[kPanels];
#pragma GCC unroll 8
      for (int v = 0; v < kPanels; ++v) {
        w[v] = (__m512bh)_mm512_load_si512(panels + v * panel_bytes + offset);
        _mm_prefetch(reinterpret_cast<const char*>(panels + v * panel_bytes + ahead), _MM_HINT_T1);
      }
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const __m512bh xt = broadcast_pair(x + t * kLineBytes);
#pragma GCC unroll 8
        for (int v = 0; v < kPanels; ++v) sum[t][v] = _mm512_dpbf16_ps(sum[t][v], xt, w[v]);
      }
    }
    tokens += kTokens * kLineBytes;
  }
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 8
    for (int v = 0; v < kPanels; ++v) _mm512_store_ps(sums + (t * kPanels + v) * kPanelRows, sum[t][v]);
  }
}

// Adds the bias, and what `out` holds already; writes only the rows that exist. sums: [tokens][panels][16 rows]
void finish(const LinearTask& task, const float* sums, int first_token, int tokens, int first_panel, int panels) {
  for (int v = 0; v < panels; ++v) {
    const int column = (first_panel + v) * kPanelRows;
    const int left = task.rows - column;
    const auto mask = static_cast<__mmask16>(left >= kPanelRows ? 0xffffu : (1u << left) - 1u);
    const __m512 bias = task.bias == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, task.bias + column);
    for (int t = 0; t < tokens; ++t) {
      float* out = task.out + (first_token + t) * task.out_stride + column;
      __m512 value = _mm512_load_ps(sums + (t * panels + v) * kPanelRows);
      if (task.bias != nullptr) value = _mm512_add_ps(value, bias);
      if (task.add) value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), value);
      _mm512_mask_storeu_ps(out, mask, value);
    }
  }
}

// All tiles of the block with kPanels panels.
template <int kPanels, int kTokens>
void multiply_panels(const LinearTask& task, const TokenBlock& block, int panel, const uint8_t* scratch) {
  alignas(64) float sums[kTokens * kPanels * kPanelRows];
  const uint8_t* panels = task.panels + task.panel_bytes * static_cast<size_t>(panel);
  for (int tile = 0; tile < block.tiles; ++tile, scratch += tile_bytes(task.cols, kTokens)) {
    const int first = tile * kTokens;
    const int tokens = block.count - first < kTokens ? block.count - first : kTokens;
    multiply<kPanels, kTokens>(panels, static_cast<ptrdiff_t>(task.panel_bytes), scratch, task.cols, sums);
    finish(task, sums, block.first + first, tokens, panel, kPanels);
  }
}

// The last panels of a share: fewer than a tile has.
template <int kPanels, int kTokens>
void multiply_rest(const LinearTask& task, const TokenBlock& block, int panel, int end_panel, const uint8_t* scratch) {
  if constexpr (kPanels > 0) {
    if (end_panel - panel == kPanels) return multiply_panels<kPanels, kTokens>(task, block, panel, scratch);
    multiply_rest<kPanels - 1, kTokens>(task, block, panel, end_panel, scratch);
  }
}

// Panels are the outer loop: each is read from memory once.
template <int kTokens>
void multiply_block(const LinearTask& task, const TokenBlock& block, int panel, int end_panel, const uint8_t* scratch) {
  constexpr int kPanels = panels_for(kTokens);
  for (; panel + kPanels <= end_panel; panel += kPanels) {
    multiply_panels<kPanels, kTokens>(task, block, panel, scratch);
  }
  multiply_rest<kPanels - 1, kTokens>(task, block, panel, end_panel, scratch);
}

using MultiplyBlock = void(const LinearTask& task, const TokenBlock& block, int panel, int end_panel,
                           const uint8_t* scratch);
constexpr MultiplyBlock* kMultiplyBlock[kTileTokens] = {multiply_block<1>, multiply_block<2>, multiply_block<3>,
                                                        multiply_block<4>, multiply_block<5>, multiply_block<6>,
                                                        multiply_block<7>, multiply_block<8>};

}  // namespace

// Never less for fewer columns: what is reserved for the widest matrix serves all.
size_t linear_scratch_bytes(int cols) {
  const size_t smallest_block = tile_bytes(cols, kTileTokens) * kMinBlockTiles;
  return smallest_block > kBlockBytes ? smallest_block : kBlockBytes;
}

void linear_bf16(const LinearTask& task, int first_panel, int end_panel, uint8_t* scratch) {
  const int block_tokens = block_tiles(task.cols) * kTileTokens;
  for (int first = 0; first < task.tokens; first += block_tokens) {
    const TokenBlock block(first, task.tokens - first < block_tokens ? task.tokens - first : block_tokens);
    round_tokens(task, block, scratch);
    kMultiplyBlock[block.height - 1](task, block, first_panel, end_panel, scratch);
  }
}

}  // namespace llmsrv::cpu::avx512_bf16
