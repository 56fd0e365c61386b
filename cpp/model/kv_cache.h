// The memory of all keys and values: for each layer a row of blocks. Which block belongs to whom is the scheduler's
// affair; what is inside a block is the backend's.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cpp/base/aligned_buffer.h"
#include "cpp/model/spec.h"
#include "cpp/ops/backend.h"

namespace llmsrv {

struct KvCacheShape {
  int layers = 0;
  int blocks = 0;
  int block_size = 0;
  DType dtype = DType::kBf16;
  std::size_t layer_block_bytes = 0;  // Backend::kv_block_bytes

  std::size_t block_bytes() const { return layer_block_bytes * static_cast<std::size_t>(layers); }
  std::size_t bytes() const { return block_bytes() * static_cast<std::size_t>(blocks); }
};

class KvCache {
 public:
  // Reserves the memory; the first touch of a page takes it. A cache of no blocks is legal and holds nothing.
  explicit KvCache(const KvCacheShape& shape);

  KvLayer layer(int index) const { return layers_[static_cast<std::size_t>(index)]; }
  std::span<const KvLayer> layers() const { return layers_; }

  // Gives all pages back to the system. What the blocks held is gone; the layers keep their addresses.
  void give_back() { buffer_.give_back(); }
  std::span<std::byte> memory() const { return {buffer_.data(), buffer_.size()}; }

 private:
  AlignedBuffer buffer_;         // [layers, blocks, layer_block_bytes]
  std::vector<KvLayer> layers_;  // into buffer_
};

}  // namespace llmsrv
