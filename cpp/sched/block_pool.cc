#include "cpp/sched/block_pool.h"

#include <utility>

#include "cpp/base/check.h"

namespace llmsrv {

BlockList& BlockList::operator=(BlockList&& other) noexcept {
  if (this != &other) {
    clear();
    pool_ = other.pool_;
    ids_ = std::move(other.ids_);
    other.ids_.clear();
  }
  return *this;
}

void BlockList::append(BlockList&& more) {
  if (pool_ == nullptr) pool_ = more.pool_;
  LLMSRV_CHECK(more.ids_.empty() || pool_ == more.pool_);
  ids_.insert(ids_.end(), more.ids_.begin(), more.ids_.end());
  more.ids_.clear();
}

void BlockList::clear() {
  for (auto id = ids_.rbegin(); id != ids_.rend(); ++id) pool_->give_back(*id);
  ids_.clear();
}

BlockPool::BlockPool(int total) : total_(total) {
  LLMSRV_CHECK(total > 0);
  references_.assign(static_cast<std::size_t>(total), 0);
  free_.reserve(static_cast<std::size_t>(total));
  for (BlockId id = total; id-- > 0;) free_.push_back(id);
}

std::optional<BlockList> BlockPool::take(int count) {
  LLMSRV_CHECK(count > 0);
  if (count > free_count()) return std::nullopt;
  BlockList list;
  list.pool_ = this;
  list.ids_.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    const BlockId id = free_.back();
    free_.pop_back();
    references_[static_cast<std::size_t>(id)] = 1;
    list.ids_.push_back(id);
  }
  return list;
}

void BlockPool::give_back(BlockId id) {
  std::int32_t& references = references_[static_cast<std::size_t>(id)];
  if (--references == 0) free_.push_back(id);
}

void BlockPool::audit() const {
  std::vector<bool> is_free(static_cast<std::size_t>(total_), false);
  for (const BlockId id : free_) {
    LLMSRV_CHECK(id >= 0 && id < total_);
    LLMSRV_CHECK(!is_free[static_cast<std::size_t>(id)]);
    LLMSRV_CHECK(references_[static_cast<std::size_t>(id)] == 0);
    is_free[static_cast<std::size_t>(id)] = true;
  }
  for (std::size_t id = 0; id < is_free.size(); ++id) LLMSRV_CHECK(is_free[id] || references_[id] >= 1);
}

}  // namespace llmsrv
