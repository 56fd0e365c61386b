// The memory of all keys and values: for each layer a row of blocks. Which block belongs to whom is the scheduler's
// affair; what is inside a block is the backend's.
#pragma once

#include <cstddef>

#include "cpp/base/aligned_buffer.h"
#include "cpp/base/thread_pool.h"
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
  // Takes the memory and touches all of it in parallel, so that no request ever waits for the system (promise P8).
  KvCache(const KvCacheShape& shape, ThreadPool& pool);

  KvLayer layer(int index) const;

 private:
  KvCacheShape shape_;
  AlignedBuffer buffer_;  // [layers, blocks, layer_block_bytes]
};

}  // namespace llmsrv
