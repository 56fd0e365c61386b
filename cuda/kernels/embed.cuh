// out[t, :] = scale * table[ids[t], :], the table in any packed format; an id of -1 - k stands for drawn[k].
//
// Work: a thread takes four columns of a token. Grid: (tokens, pieces of a row). Shared memory: none. Bytes moved: the
// result once; of the table eight times the row's own bytes, as a line holds 16 rows and the least that is read of it
// is 32 bytes. Assumes: cols is a multiple of 4, and of 32 for quantized formats; ids are inside the table (the core
// checks its own, and what was drawn is).
#pragma once

#include "cuda/kernels/packed_values.cuh"

namespace llmsrv::cuda {

struct EmbedParams {
  const unsigned char* table = nullptr;  // panels, back to back
  std::size_t panel_bytes = 0;
  const std::int32_t* ids = nullptr;    // [tokens]
  const std::int32_t* drawn = nullptr;  // tokens that the host did not know
  float* out = nullptr;                 // row t starts at t * out_stride
  int out_stride = 0;
  int tokens = 0;
  int cols = 0;
  float scale = 1.0f;
};

constexpr int kEmbedThreads = 128;

template <PackedFormat kFormat>
__global__ void __launch_bounds__(kEmbedThreads) embed_kernel(const EmbedParams p) {
  const int col = static_cast<int>(blockIdx.y * kEmbedThreads + threadIdx.x) * 4;
  if (col >= p.cols) return;
  const int told = p.ids[blockIdx.x];
  const int id = told < 0 ? p.drawn[-1 - told] : told;
  const unsigned char* panel = p.table + static_cast<std::size_t>(id / packed::kPanelRows) * p.panel_bytes;
  const FourWeights weights = load_weights<kFormat>(panel, id % packed::kPanelRows, col);
  Chunk<float> out;
  LLMSRV_UNROLL
  for (int i = 0; i < 4; ++i) out.values[i] = p.scale * weights.values[i];
  store_chunk(row_at(p.out, static_cast<int>(blockIdx.x), p.out_stride) + col, out);
}

}  // namespace llmsrv::cuda
