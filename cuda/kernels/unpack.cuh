// A packed matrix as bf16 rows, [outputs, cols]: what a dense product of a library takes. Weights are rounded to bf16,
// which packed products never do: a layer that goes through here gives other bits than one that does not.
//
// Work: a thread takes a group (32 columns) of a row, so that it writes 64 bytes side by side; a block has 16 rows
// times kUnpackGroups groups. Grid: (panels, pieces of a row). Shared memory: none. Bytes moved: the matrix once, the
// rows once. Assumes: cols is a multiple of 4, and of 32 for quantized formats; rows start at multiples of 8 bytes.
#pragma once

#include "cuda/kernels/packed_values.cuh"

namespace llmsrv::cuda {

struct UnpackParams {
  const unsigned char* weights = nullptr;  // panels, back to back
  std::size_t panel_bytes = 0;
  Bf16* out = nullptr;  // row n starts at n * out_stride
  int out_stride = 0;
  int outputs = 0;
  int cols = 0;
};

constexpr int kUnpackGroups = 8;
constexpr int kUnpackThreads = packed::kPanelRows * kUnpackGroups;

template <PackedFormat kFormat>
__global__ void __launch_bounds__(kUnpackThreads) unpack_kernel(const UnpackParams p) {
  const int row = static_cast<int>(threadIdx.x) % packed::kPanelRows;
  const int group = static_cast<int>(blockIdx.y) * kUnpackGroups + static_cast<int>(threadIdx.x) / packed::kPanelRows;
  const int output = static_cast<int>(blockIdx.x) * packed::kPanelRows + row;
  if (output >= p.outputs) return;
  const unsigned char* panel = p.weights + blockIdx.x * p.panel_bytes;
  LLMSRV_UNROLL
  for (int i = 0; i < packed::kGroupCols; i += 4) {
    const int col = group * packed::kGroupCols + i;
    if (col >= p.cols) return;
    const FourWeights weights = load_weights<kFormat>(panel, row, col);
    Pack<Bf16, 4> out;
    LLMSRV_UNROLL
    for (int j = 0; j < 4; ++j) out.values[j] = from_float<Bf16>(weights.values[j]);
    store_pack(row_at(p.out, output, p.out_stride) + col, out);
  }
}

}  // namespace llmsrv::cuda
