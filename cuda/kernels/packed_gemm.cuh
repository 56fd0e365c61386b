// out[t, n] (+)= sum_k x[t, k] w[n, k] + bias[n]: bf16 inputs against a packed matrix, for many tokens.
//
// The sums have packed_linear.cuh's order: four runs of columns, each in groups of 32, added up in ascending order. So
// a token's bits are the same whether it was decoded alone or is one of a prompt's chunk.
//
// Work: a block takes kGemmWarps panels (16 outputs each) and kGemmTokens tokens. A warp turns a group of its panel
// into bf16 in its registers once for all tokens. Inputs come through a ring of kGemmStages stages of 64 columns,
// filled by cp.async two stages ahead. Grid: (panels / kGemmWarps, token tiles). Shared memory: 30 KiB; a row of a
// stage has 160 bytes, so that the lanes of half a warp read from banks of their own. Bytes moved: the matrix once per
// kGemmTokens tokens, inputs once per kGemmWarps panels, both from L2 where they fit; the result once. Assumes: cols is
// a multiple of 32; rows of x start at multiples of 16 bytes.
#pragma once

#include "cuda/kernels/packed_linear.cuh"

namespace llmsrv::cuda {

constexpr int kGemmWarps = 8;
constexpr int kGemmThreads = kGemmWarps * kWarpThreads;
constexpr int kGemmTiles = 8;
constexpr int kGemmTokens = kGemmTiles * kTileTokens;
constexpr int kGemmStages = 3;
constexpr int kStageGroups = 2;
constexpr int kStageCols = kStageGroups * packed::kGroupCols;
constexpr int kStageStride = kStageCols + 16;  // elements
constexpr int kStageElements = kGemmTokens * kStageStride;

// Starts the copy of a stage's columns of all tokens of the block; zeros where there is no token or no column.
template <typename Out>
__device__ inline void copy_stage(const PackedLinearParams<Out>& p, int first_token, int stage, Bf16* ring) {
  constexpr int kChunks = kStageCols / Chunk<Bf16>::kCount;
  Bf16* to = ring + stage % kGemmStages * kStageElements;
  for (int i = static_cast<int>(threadIdx.x); i < kGemmTokens * kChunks; i += kGemmThreads) {
    const int token = i / kChunks;
    const int col = i % kChunks * Chunk<Bf16>::kCount;
    const int from_col = stage * kStageCols + col;
    const bool wanted = first_token + token < p.tokens && from_col < p.cols;
    const Bf16* from = wanted ? row_at(p.in, first_token + token, p.in_stride) + from_col : p.in;
    copy_async_16(to + token * kStageStride + col, from, wanted);
  }
  commit_copies();  // empty ones too, so that the count of groups tells the stage
}

// A lane's sums, as multiply_add leaves them: outputs lane / 4 and + 8, tokens 2 (lane % 4) and + 1 of each tile.
template <typename Out>
__device__ inline void store_tile(const PackedLinearParams<Out>& p, int panel, int first_token,
                                  const float (&totals)[kGemmTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  LLMSRV_UNROLL
  for (int tile = 0; tile < kGemmTiles; ++tile) {
    LLMSRV_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int output = panel * packed::kPanelRows + lane / 4 + i / 2 * 8;
      const int token = first_token + tile * kTileTokens + lane % 4 * 2 + i % 2;
      if (output >= p.outputs || token >= p.tokens) continue;
      Out* out = row_at(p.out, token, p.out_stride) + output;
      *out = from_float<Out>(p.adds ? to_float(*out) + totals[tile][i] : totals[tile][i]);
    }
  }
}

template <PackedFormat kFormat, typename Out>
__global__ void __launch_bounds__(kGemmThreads, 1) packed_gemm_kernel(const PackedLinearParams<Out> p) {
  LLMSRV_SHARED(Chunk<Bf16>, ring_chunks, kGemmStages * kStageElements / Chunk<Bf16>::kCount);
  Bf16* ring = ring_chunks[0].values;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int panel = static_cast<int>(blockIdx.x) * kGemmWarps + static_cast<int>(threadIdx.x) / kWarpThreads;
  const bool has_panel = panel * packed::kPanelRows < p.outputs;  // others help with the copies
  const unsigned char* weights = p.weights + static_cast<std::size_t>(has_panel ? panel : 0) * p.panel_bytes;
  const int first_token = static_cast<int>(blockIdx.y) * kGemmTokens;
  const int groups = p.cols / packed::kGroupCols;

  float totals[kGemmTiles][4];
  LLMSRV_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int output = panel * packed::kPanelRows + lane / 4 + i / 2 * 8;
    const float bias = p.bias != nullptr && output < p.outputs ? p.bias[output] : 0.0f;
    LLMSRV_UNROLL
    for (int tile = 0; tile < kGemmTiles; ++tile) totals[tile][i] = bias;
  }
  for (int stage = 0; stage < kGemmStages - 1; ++stage) copy_stage(p, first_token, stage, ring);
  int group = 0;
  for (int run = 0; run < kLinearWarps; ++run) {
    float sums[kGemmTiles][4] = {};
    for (; group < groups * (run + 1) / kLinearWarps; ++group) {
      if (group % kStageGroups == 0) {
        wait_for_copies<kGemmStages - 2>();
        __syncthreads();  // the stage is there for all, and no warp reads the one that is filled next
        copy_stage(p, first_token, group / kStageGroups + kGemmStages - 1, ring);
      }
      const Bf16* stage = ring + group / kStageGroups % kGemmStages * kStageElements;
      const auto inputs = [&](int tile, int step) {
        const int col = group % kStageGroups * packed::kGroupCols + step * 16 + lane % 4 * 4;
        return *reinterpret_cast<const uint2*>(stage + (tile * kTileTokens + lane / 4) * kStageStride + col);
      };
      multiply_group<kFormat, kGemmTiles>(weights, group, inputs, sums);
    }
    LLMSRV_UNROLL
    for (int tile = 0; tile < kGemmTiles; ++tile) {
      LLMSRV_UNROLL
      for (int i = 0; i < 4; ++i) totals[tile][i] += sums[tile][i];
    }
  }
  store_tile(p, panel, first_token, totals);
}

}  // namespace llmsrv::cuda
