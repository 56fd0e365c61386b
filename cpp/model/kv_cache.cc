#include "cpp/model/kv_cache.h"

#include <utility>

#include "cpp/base/check.h"

namespace llmsrv {

KvCache::KvCache(const KvCacheShape& shape, std::unique_ptr<Buffer> buffer) : buffer_(std::move(buffer)) {
  LLMSRV_CHECK(buffer_->size() == shape.bytes());
  const std::size_t layer_bytes = shape.layer_block_bytes * static_cast<std::size_t>(shape.blocks);
  for (int layer = 0; layer < shape.layers; ++layer) {
    layers_.push_back({buffer_->data() + layer_bytes * static_cast<std::size_t>(layer), shape.blocks, shape.block_size,
                       shape.dtype, shape.layer_block_bytes, buffer_->place()});
  }
}

}  // namespace llmsrv
