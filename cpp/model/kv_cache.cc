#include "cpp/model/kv_cache.h"

#include <algorithm>
#include <cstring>

namespace llmsrv {

KvCache::KvCache(const KvCacheShape& shape, ThreadPool& pool) : shape_(shape), buffer_(shape.bytes()) {
  const std::size_t share = buffer_.size() / static_cast<std::size_t>(pool.size()) + 1;
  pool.run([&](int member) {
    const std::size_t begin = std::min(share * static_cast<std::size_t>(member), buffer_.size());
    const std::size_t end = std::min(begin + share, buffer_.size());
    std::memset(buffer_.data() + begin, 0, end - begin);
  });
}

KvLayer KvCache::layer(int index) const {
  const std::size_t layer_bytes = shape_.layer_block_bytes * static_cast<std::size_t>(shape_.blocks);
  return {buffer_.data() + layer_bytes * static_cast<std::size_t>(index), shape_.blocks, shape_.block_size,
          shape_.dtype, shape_.layer_block_bytes};
}

}  // namespace llmsrv
