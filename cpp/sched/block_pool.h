// Owns which KV blocks are free, cached and held. Ids only: the memory belongs to the KV cache.
//
//   free ----take----> held ----last holder gone, not indexed----> free
//                      ^  |
//                 adopt|  |last holder gone, indexed
//                      |  v
//                     cached ----take, when nothing is free----> held (what it held is forgotten)
//
// Thread rule: engine thread only.
// Invariants: free + cached + held == total; a held id has references >= 1, the others none; a cached id is indexed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cpp/base/types.h"
#include "cpp/sched/block_rings.h"
#include "cpp/sched/prefix_index.h"

namespace llmsrv {

class BlockPool;

// Blocks held by one owner, in the order of its tokens. They go back to the pool when the list goes. Move only.
// Lifetime: the pool must outlive the list.
class BlockList {
 public:
  BlockList() = default;
  ~BlockList() { clear(); }
  BlockList(BlockList&& other) noexcept : pool_(other.pool_), ids_(std::move(other.ids_)) { other.ids_.clear(); }
  BlockList& operator=(BlockList&& other) noexcept;

  // Moves all blocks of `more` to the end of this list.
  void append(BlockList&& more);
  // Gives all blocks back, the last one first, so that the head of a sequence is the last to be reused.
  void clear();

  int size() const { return static_cast<int>(ids_.size()); }
  const BlockId* data() const { return ids_.data(); }
  BlockId operator[](int index) const { return ids_[static_cast<std::size_t>(index)]; }

 private:
  friend class BlockPool;
  BlockPool* pool_ = nullptr;
  std::vector<BlockId> ids_;
};

// Which cached block is forgotten first. Both orders take the least recently held first.
enum class EvictionOrder {
  kLru,        // among all
  kOnceFirst,  // among those that were never found by the index, then among the others: a quarter of the pool at most
};

class BlockPool {
 public:
  // `index` outlives the pool. Null: no block is ever cached. REQUIRES: total > 0
  explicit BlockPool(int total, PrefixIndex* index = nullptr, EvictionOrder order = EvictionOrder::kOnceFirst);

  // `count` blocks with no contents, or nothing when fewer are free or cached: all or none. Free ones go first, then
  // cached ones, which the index forgets. REQUIRES: count > 0
  std::optional<BlockList> take(int count);

  // Another hold on blocks that the index has found. REQUIRES: each is cached or held
  BlockList adopt(std::span<const BlockId> found);

  // Forgets what every block holds: cached ones become free, held ones will when their holders go. How many became
  // free.
  int forget_all();

  int total() const { return total_; }
  int free_count() const { return static_cast<int>(free_.size()); }
  int cached_count() const { return cached_count_; }
  int held_count() const { return total_ - free_count() - cached_count(); }
  // What take() can give.
  int available_count() const { return free_count() + cached_count(); }
  // How many lists hold the block.
  int holders(BlockId id) const { return references_[static_cast<std::size_t>(id)]; }

  // The memory it owns: it does not depend on who holds what.
  std::size_t bytes() const;

  // Checks every invariant; throws InternalError. O(total): for tests and for an idle engine.
  void audit() const;

 private:
  friend class BlockList;
  int queue_of(BlockId id) const;
  void give_back(BlockId id);
  void enqueue(BlockId id);
  void unlink(BlockId id);
  BlockId evict();

  const int total_;
  PrefixIndex* const index_;
  const EvictionOrder order_;
  std::vector<BlockId> free_;             // a stack: the block that was freed last is the warmest
  std::vector<std::int32_t> references_;  // by id
  std::vector<bool> reused_;              // by id: found by the index since it was indexed
  BlockRings queues_;                     // of cached blocks; the front was held least recently
  int cached_count_ = 0;
  int reused_count_ = 0;  // in the second queue
};

}  // namespace llmsrv
