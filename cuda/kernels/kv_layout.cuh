// Where keys and values of one layer stand: a block holds the keys of block_size tokens, then their values, each head
// by head, so that the tokens of a head in a block are contiguous. Of one-byte types a token's key and value have a
// scale each per head; these follow in the same block, so that whatever copies or swaps a block takes them along.
#pragma once

#include "cuda/kernels/kv_types.cuh"

namespace llmsrv::cuda {

template <typename T>
struct KvLayout {
  T* data = nullptr;  // [blocks]: [2: keys, values][kv_heads][block_size][head_dim], then if kIsScaled
                      // float2 [kv_heads][block_size]: scales of key and value
  int kv_heads = 0;
  int block_size = 0;   // a power of two, at least 8
  int block_shift = 0;  // its logarithm
  int head_dim = 0;

  __host__ __device__ std::size_t half_block() const { return head_tokens() * static_cast<std::size_t>(head_dim); }
  __host__ __device__ std::size_t block_elements() const {
    return 2 * half_block() + (kIsScaled<T> ? head_tokens() * sizeof(float2) : 0);
  }
  // In units of 16 bytes, of which a layer has less than 2^32. REQUIRES: head_dim * sizeof(T) is a multiple of 16
  __device__ std::uint32_t block_chunks() const {
    return static_cast<std::uint32_t>(block_elements() * sizeof(T) / 16);
  }
  __device__ const T* chunk(std::uint32_t index) const {
    return data + static_cast<std::size_t>(index) * (16 / sizeof(T));
  }
  // Element 0 of the key of token `offset` of a block; its value is half_block() behind it.
  __device__ std::size_t key_at(int block, int head, int offset) const {
    return static_cast<std::size_t>(block) * block_elements() +
           token_of_head(head, offset) * static_cast<std::size_t>(head_dim);
  }
  // REQUIRES: kIsScaled<T>
  __device__ float2* scales_at(int block, int head, int offset) const {
    T* scales = data + static_cast<std::size_t>(block) * block_elements() + 2 * half_block();
    return reinterpret_cast<float2*>(scales) + token_of_head(head, offset);
  }
  // The same of token `position` of a sequence.
  __device__ std::size_t key_of(const std::int32_t* blocks, int head, int position) const {
    return key_at(blocks[position >> block_shift], head, position & (block_size - 1));
  }
  __device__ float2* scales_of(const std::int32_t* blocks, int head, int position) const {
    return scales_at(blocks[position >> block_shift], head, position & (block_size - 1));
  }

 private:
  __host__ __device__ std::size_t head_tokens() const {
    return static_cast<std::size_t>(kv_heads) * static_cast<std::size_t>(block_size);
  }
  __device__ std::size_t token_of_head(int head, int offset) const {
    return static_cast<std::size_t>(head) * static_cast<std::size_t>(block_size) + static_cast<std::size_t>(offset);
  }
};

}  // namespace llmsrv::cuda
