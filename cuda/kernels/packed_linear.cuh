// out[t, n] (+)= sum_k x[t, k] w[n, k] + bias[n]: bf16 inputs against a packed matrix, for few tokens. For many,
// packed_gemm.cuh computes the same bits.
//
// Work: a block takes one panel (16 outputs) and up to 8 kTokenTiles tokens; its kLinearWarps warps cut the columns
// into as many runs and add their sums up in ascending order. Grid: (panels, token tiles). A sum runs over its columns
// in the same order whatever the number of tokens, so that a row's bits do not depend on its neighbours. Shared memory:
// 2 KiB per 8 tokens. Bytes moved: the packed matrix once per 8 kTokenTiles tokens; inputs from L1 and L2. Assumes:
// cols is a multiple of 32; rows of x start at multiples of 8 bytes.
#pragma once

#include "cuda/kernels/packed_group.cuh"

namespace llmsrv::cuda {

template <typename Out, typename In = Bf16>
struct PackedLinearParams {
  const In* in = nullptr;  // row t starts at t * in_stride
  int in_stride = 0;
  const unsigned char* weights = nullptr;  // panels, back to back
  std::size_t panel_bytes = 0;
  const float* bias = nullptr;  // [outputs] or none
  Out* out = nullptr;           // row t starts at t * out_stride
  int out_stride = 0;
  int tokens = 0;
  int cols = 0;
  int outputs = 0;
  bool adds = false;  // to what is there
};

constexpr int kLinearWarps = 4;
constexpr int kLinearThreads = kLinearWarps * kWarpThreads;
constexpr int kTileTokens = 8;

// sums += the products of group `index`. inputs(tile, step) gives columns 16 step + 4 t .. + 3 of the group, t = lane %
// 4, of token lane / 4 of a tile, which are the packed operand's places; zeros for a token that is not there.
template <PackedFormat kFormat, int kTokenTiles, typename Inputs>
__device__ inline void multiply_group(const unsigned char* panel, int index, const Inputs& inputs,
                                      float (&sums)[kTokenTiles][4]) {
  constexpr FormatTraits kTraits = traits_of(kFormat);
  constexpr std::uint32_t kOnes[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
  PackedGroup group;
  load_group<kFormat>(panel, index, group);
  LLMSRV_UNROLL
  for (int tile = 0; tile < kTokenTiles; ++tile) {
    float products[2][4] = {};
    float input_sums[4] = {};  // for the minima
    LLMSRV_UNROLL
    for (int step = 0; step < 2; ++step) {
      const uint2 x = inputs(tile, step);
      // One scale for both halves of a group: one sum.
      multiply_add(products[kTraits.has_half_scales ? step : 0], group.values[step], {x.x, x.y});
      if constexpr (kTraits.has_mins) multiply_add(input_sums, kOnes, {x.x, x.y});
    }
    LLMSRV_UNROLL
    for (int i = 0; i < 4; ++i) {
      sums[tile][i] = __fmaf_rn(products[0][i], group.scales[0][i / 2], sums[tile][i]);
      if constexpr (kTraits.has_half_scales) {
        sums[tile][i] = __fmaf_rn(products[1][i], group.scales[1][i / 2], sums[tile][i]);
      }
      if constexpr (kTraits.has_mins) sums[tile][i] = __fmaf_rn(input_sums[i], group.mins[i / 2], sums[tile][i]);
    }
  }
}

template <PackedFormat kFormat, int kTokenTiles, typename Out>
__global__ void __launch_bounds__(kLinearThreads, 1) packed_linear_kernel(const PackedLinearParams<Out> p) {
  LLMSRV_SHARED(float, parts, kLinearWarps * kTokenTiles * kWarpThreads * 4);  // [warp][tile][lane][4]
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const unsigned char* panel = p.weights + blockIdx.x * p.panel_bytes;
  const int first_token = static_cast<int>(blockIdx.y) * kTokenTiles * kTileTokens;
  const int groups = p.cols / packed::kGroupCols;
  const int end = groups * (warp + 1) / kLinearWarps;

  float sums[kTokenTiles][4] = {};
  for (int group = groups * warp / kLinearWarps; group < end; ++group) {
    const auto inputs = [&](int tile, int step) {
      const int token = first_token + tile * kTileTokens + lane / 4;
      if (token >= p.tokens) return uint2{0, 0};
      const int col = group * packed::kGroupCols + step * 16 + lane % 4 * 4;
      return *reinterpret_cast<const uint2*>(row_at(p.in, token, p.in_stride) + col);
    };
    multiply_group<kFormat, kTokenTiles>(panel, group, inputs, sums);
  }
  LLMSRV_UNROLL
  for (int tile = 0; tile < kTokenTiles; ++tile) {
    LLMSRV_UNROLL
    for (int i = 0; i < 4; ++i) parts[((warp * kTokenTiles + tile) * kWarpThreads + lane) * 4 + i] = sums[tile][i];
  }
  __syncthreads();  // every warp's sums are there

  for (int at = static_cast<int>(threadIdx.x); at < kTokenTiles * kTileTokens * packed::kPanelRows;
       at += kLinearThreads) {
    const int row = at % packed::kPanelRows;
    const int token_in_block = at / packed::kPanelRows;
    const int output = static_cast<int>(blockIdx.x) * packed::kPanelRows + row;
    const int token = first_token + token_in_block;
    if (output >= p.outputs || token >= p.tokens) continue;
    // Where multiply_add left it: lane 4 (row % 8) + token / 2, element 2 (row / 8) + token % 2.
    const int part =
        (token_in_block / kTileTokens * kWarpThreads + row % 8 * 4 + token_in_block % kTileTokens / 2) * 4 +
        row / 8 * 2 + token_in_block % 2;
    float sum = p.bias != nullptr ? p.bias[output] : 0.0f;
    LLMSRV_UNROLL
    for (int w = 0; w < kLinearWarps; ++w) sum += parts[w * kTokenTiles * kWarpThreads * 4 + part];
    Out* out = row_at(p.out, token, p.out_stride) + output;
    *out = from_float<Out>(p.adds ? to_float(*out) + sum : sum);
  }
}

}  // namespace llmsrv::cuda
