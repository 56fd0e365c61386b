// The memory of all keys and values: for each layer a row of blocks. Which block belongs to whom is the scheduler's
// affair; what is inside a block is the backend's.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "cpp/model/spec.h"
#include "cpp/ops/backend.h"
#include "cpp/tensor/buffer.h"

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
  // In memory of the backend's. A cache of no blocks is legal and holds nothing. REQUIRES: buffer->size() ==
  // shape.bytes()
  KvCache(const KvCacheShape& shape, std::unique_ptr<Buffer> buffer);

  KvLayer layer(int index) const { return layers_[static_cast<std::size_t>(index)]; }
  std::span<const KvLayer> layers() const { return layers_; }

  // The pages, where the system gives and takes them back one by one; the first touch of one takes it. Given back, what
  // the blocks held is gone; the layers keep their addresses.
  AlignedBuffer* pages() { return buffer_->pages(); }

 private:
  std::unique_ptr<Buffer> buffer_;  // [layers, blocks, layer_block_bytes]
  std::vector<KvLayer> layers_;     // into buffer_
};

}  // namespace llmsrv
