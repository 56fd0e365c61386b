// out[t, n] (+)= sum_k x[t, k] w[n, k] + bias[n]: float inputs against a packed matrix of any format. This is the
// product of the float32 mode, where results are held against the CPU's.
//
// A sum runs over its columns in ascending order in one accumulator, as cpp/ops/backend.h defines it: for plain weights
// the bits are those of the CPU's kernels that have a fused multiply-add.
//
// Work: a thread takes one output and kFloatTokens tokens. A block has 16 outputs of a panel times 8 places, which
// `token_places` of them use for tokens and the others for further panels, so that few tokens leave no thread idle.
// Grid: (panels, token tiles). Shared memory: none. Bytes moved: the packed matrix once per token tile; inputs from L1
// and L2. One chain per output is bound by latency: tensor cores (packed_linear.cuh) are the way to be fast.
// Assumes: cols is a multiple of 4, and of 32 for quantized formats; rows of x start at multiples of 16 bytes.
#pragma once

#include "cuda/kernels/packed_linear.cuh"
#include "cuda/kernels/packed_values.cuh"

namespace llmsrv::cuda {

constexpr int kFloatThreads = 128;
constexpr int kFloatPlaces = kFloatThreads / packed::kPanelRows;
constexpr int kFloatTokens = 2;

template <PackedFormat kFormat>
__global__ void __launch_bounds__(kFloatThreads)
    float_linear_kernel(const PackedLinearParams<float, float> p, const int token_places) {
  const int row = static_cast<int>(threadIdx.x) % packed::kPanelRows;
  const int place = static_cast<int>(threadIdx.x) / packed::kPanelRows;
  const int panel = static_cast<int>(blockIdx.x) * (kFloatPlaces / token_places) + place / token_places;
  const int first = (static_cast<int>(blockIdx.y) * token_places + place % token_places) * kFloatTokens;
  const int output = panel * packed::kPanelRows + row;
  if (output >= p.outputs || first >= p.tokens) return;

  const unsigned char* weights = p.weights + static_cast<std::size_t>(panel) * p.panel_bytes;
  const float* in[kFloatTokens];
  LLMSRV_UNROLL
  for (int t = 0; t < kFloatTokens; ++t) {
    const int token = first + t < p.tokens ? first + t : first;  // a tile that is not full repeats its first row
    in[t] = row_at(p.in, token, p.in_stride);
  }
  float sums[kFloatTokens] = {};
  for (int col = 0; col < p.cols; col += 4) {
    const FourWeights w = load_weights<kFormat>(weights, row, col);
    LLMSRV_UNROLL
    for (int t = 0; t < kFloatTokens; ++t) {
      const Chunk<float> x = load_chunk(in[t] + col);
      LLMSRV_UNROLL
      for (int i = 0; i < 4; ++i) sums[t] = __fmaf_rn(x.values[i], w.values[i], sums[t]);
    }
  }
  LLMSRV_UNROLL
  for (int t = 0; t < kFloatTokens; ++t) {
    if (first + t >= p.tokens) break;
    float* out = row_at(p.out, first + t, p.out_stride) + output;
    const float sum = p.bias != nullptr ? sums[t] + p.bias[output] : sums[t];
    *out = p.adds ? *out + sum : sum;
  }
}

}  // namespace llmsrv::cuda
