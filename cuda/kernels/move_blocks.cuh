// Block moves[i].to of every layer becomes block moves[i].from, one move after the other.
//
// Work: a thread owns 16 bytes at the same place of every block of a layer and takes the moves in order, so that a
// block may be read after it was written without a barrier. Shared memory: none. Bytes moved: each block once in, once
// out. Assumes: block_bytes is a multiple of 16; a layer's blocks start at multiples of 16 bytes.
#pragma once

#include "cuda/kernels/device.cuh"

namespace llmsrv::cuda {

struct MoveBlocksParams {
  unsigned char* const* from = nullptr;       // [layers]
  unsigned char* const* to = nullptr;         // [layers]
  const std::int32_t* from_blocks = nullptr;  // [moves]
  const std::int32_t* to_blocks = nullptr;    // [moves]
  int layers = 0;
  int moves = 0;
  std::size_t block_bytes = 0;
};

constexpr int kMoveThreads = 128;

template <int kThreads>
__global__ void __launch_bounds__(kThreads) move_blocks_kernel(const MoveBlocksParams p) {
  const std::size_t at = (static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x) * 16;
  if (at >= p.block_bytes) return;
  const unsigned char* from = p.from[blockIdx.y] + at;
  unsigned char* to = p.to[blockIdx.y] + at;
  for (int i = 0; i < p.moves; ++i) {
    store_chunk(to + static_cast<std::size_t>(p.to_blocks[i]) * p.block_bytes,
                load_chunk(from + static_cast<std::size_t>(p.from_blocks[i]) * p.block_bytes));
  }
}

}  // namespace llmsrv::cuda
