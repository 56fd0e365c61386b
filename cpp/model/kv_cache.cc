#include "cpp/model/kv_cache.h"

#include <algorithm>

namespace llmsrv {
namespace {
constexpr std::size_t kPageBytes = 4096;  // the smallest of any system: larger pages are touched more than once
}  // namespace

KvCache::KvCache(const KvCacheShape& shape, ThreadPool& pool) : buffer_(shape.bytes()) {
  const std::size_t layer_bytes = shape.layer_block_bytes * static_cast<std::size_t>(shape.blocks);
  for (int layer = 0; layer < shape.layers; ++layer) {
    layers_.push_back({buffer_.data() + layer_bytes * static_cast<std::size_t>(layer), shape.blocks, shape.block_size,
                       shape.dtype, shape.layer_block_bytes});
  }
  take(pool);
}

void KvCache::take(ThreadPool& pool) {
  const std::size_t share = buffer_.size() / static_cast<std::size_t>(pool.size()) + 1;
  pool.run([&](int member) {
    const std::size_t begin = std::min(share * static_cast<std::size_t>(member), buffer_.size());
    const std::size_t end = std::min(begin + share, buffer_.size());
    // One store takes a whole page, and the system fills it with zeros.
    for (std::size_t at = begin; at < end; at += kPageBytes) {
      *reinterpret_cast<volatile std::byte*>(buffer_.data() + at) = std::byte{0};
    }
  });
}

}  // namespace llmsrv
