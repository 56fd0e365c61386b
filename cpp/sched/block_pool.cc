#include "cpp/sched/block_pool.h"

#include <utility>

#include "cpp/base/check.h"

namespace llmsrv {
namespace {

constexpr int kQueues = 2;  // never found again; found again
// The second queue holds at most this part of the pool.
constexpr int kReusedDivisor = 4;

}  // namespace

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

BlockPool::BlockPool(int total, PrefixIndex* index, EvictionOrder order)
    : total_(total), index_(index), order_(order), queues_(total, kQueues) {
  LLMSRV_CHECK(total > 0);
  references_.assign(static_cast<std::size_t>(total), 0);
  reused_.assign(static_cast<std::size_t>(total), false);
  free_.reserve(static_cast<std::size_t>(total));
  for (BlockId id = total; id-- > 0;) free_.push_back(id);
}

std::optional<BlockList> BlockPool::take(int count) {
  LLMSRV_CHECK(count > 0);
  if (count > available_count()) return std::nullopt;
  BlockList list;
  list.pool_ = this;
  list.ids_.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    BlockId id;
    if (free_.empty()) {
      id = evict();
    } else {
      id = free_.back();
      free_.pop_back();
    }
    references_[static_cast<std::size_t>(id)] = 1;
    reused_[static_cast<std::size_t>(id)] = false;
    list.ids_.push_back(id);
  }
  return list;
}

BlockList BlockPool::adopt(std::span<const BlockId> found) {
  BlockList list;
  list.pool_ = this;
  for (const BlockId id : found) {
    LLMSRV_CHECK(index_ != nullptr && index_->holds(id));
    if (references_[static_cast<std::size_t>(id)]++ == 0) unlink(id);
    reused_[static_cast<std::size_t>(id)] = true;
    list.ids_.push_back(id);
  }
  return list;
}

int BlockPool::forget_all() {
  const int cached_before = cached_count_;
  while (cached_count_ > 0) free_.push_back(evict());
  for (BlockId id = 0; index_ != nullptr && id < total_; ++id) {
    if (index_->holds(id)) index_->erase(id);
  }
  return cached_before;
}

void BlockPool::give_back(BlockId id) {
  if (--references_[static_cast<std::size_t>(id)] > 0) return;
  if (index_ != nullptr && index_->holds(id)) {
    enqueue(id);
  } else {
    free_.push_back(id);
  }
}

int BlockPool::queue_of(BlockId id) const {
  return order_ == EvictionOrder::kOnceFirst && reused_[static_cast<std::size_t>(id)] ? 1 : 0;
}

void BlockPool::enqueue(BlockId id) {
  const int queue = queue_of(id);
  queues_.push_back(queue, id);
  ++cached_count_;
  if (queue == 0 || ++reused_count_ <= total_ / kReusedDivisor) return;
  // Without a bound, blocks that were found once long ago would outlive all new ones before these can be found.
  const BlockId oldest = *queues_.first(1);
  unlink(oldest);
  reused_[static_cast<std::size_t>(oldest)] = false;
  enqueue(oldest);
}

void BlockPool::unlink(BlockId id) {
  queues_.remove(id);
  --cached_count_;
  reused_count_ -= queue_of(id);
}

// Forgets the cached block that was least recently held, of the first queue that has one. REQUIRES: cached_count() > 0
BlockId BlockPool::evict() {
  LLMSRV_CHECK(cached_count_ > 0);
  std::optional<BlockId> id = queues_.first(0);
  if (!id) id = queues_.first(1);
  unlink(*id);
  index_->erase(*id);
  return *id;
}

std::size_t BlockPool::bytes() const {
  return free_.capacity() * sizeof(BlockId) + references_.capacity() * sizeof(std::int32_t) + reused_.capacity() / 8 +
         queues_.bytes();
}

void BlockPool::audit() const {
  enum class Place { kNone, kFree, kCached };
  std::vector<Place> places(static_cast<std::size_t>(total_), Place::kNone);
  const auto put = [&](BlockId id, Place place) {
    LLMSRV_CHECK(id >= 0 && id < total_);
    Place& current = places[static_cast<std::size_t>(id)];
    LLMSRV_CHECK(current == Place::kNone);
    LLMSRV_CHECK(references_[static_cast<std::size_t>(id)] == 0);
    LLMSRV_CHECK((place == Place::kCached) == (index_ != nullptr && index_->holds(id)));
    current = place;
  };
  for (const BlockId id : free_) put(id, Place::kFree);
  int cached = 0;
  int reused = 0;
  for (int queue = 0; queue < kQueues; ++queue) {
    for (std::optional<BlockId> id = queues_.first(queue); id; id = queues_.after(*id)) {
      put(*id, Place::kCached);
      LLMSRV_CHECK(queue_of(*id) == queue);
      ++cached;
      reused += queue;
    }
  }
  LLMSRV_CHECK(cached == cached_count_);
  LLMSRV_CHECK(reused == reused_count_ && reused <= total_ / kReusedDivisor);
  for (std::size_t id = 0; id < places.size(); ++id) {
    LLMSRV_CHECK(places[id] != Place::kNone || references_[id] >= 1);
  }
}

}  // namespace llmsrv
