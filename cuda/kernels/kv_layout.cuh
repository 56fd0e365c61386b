// Where keys and values of one layer stand: a block holds the keys of block_size tokens, then their values, each head
// by head, so that the tokens of a head in a block are contiguous.
#pragma once

#include "cuda/kernels/device.cuh"

namespace llmsrv::cuda {

template <typename T>
struct KvLayout {
  T* data = nullptr;  // [blocks][2: keys, values][kv_heads][block_size][head_dim]
  int kv_heads = 0;
  int block_size = 0;   // a power of two
  int block_shift = 0;  // its logarithm
  int head_dim = 0;

  __host__ __device__ std::size_t half_block() const {
    return static_cast<std::size_t>(kv_heads) * static_cast<std::size_t>(block_size) *
           static_cast<std::size_t>(head_dim);
  }
  // Element 0 of the key of token `offset` of a block; its value is half_block() behind it.
  __device__ std::size_t key_at(int block, int head, int offset) const {
    return static_cast<std::size_t>(block) * 2 * half_block() +
           (static_cast<std::size_t>(head) * static_cast<std::size_t>(block_size) + static_cast<std::size_t>(offset)) *
               static_cast<std::size_t>(head_dim);
  }
  // The same of token `position` of a sequence.
  __device__ std::size_t key_of(const std::int32_t* blocks, int head, int position) const {
    return key_at(blocks[position >> block_shift], head, position & (block_size - 1));
  }
};

}  // namespace llmsrv::cuda
