// Owns which KV blocks are free and which are held. Ids only: the memory belongs to the KV cache.
// Thread rule: engine thread only.
// Invariants: free + held == total; a held id has references >= 1; no id is both.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cpp/base/types.h"

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

class BlockPool {
 public:
  // REQUIRES: total > 0
  explicit BlockPool(int total);

  // `count` blocks, or nothing when fewer are free: all or none. REQUIRES: count > 0
  std::optional<BlockList> take(int count);

  int total() const { return total_; }
  int free_count() const { return static_cast<int>(free_.size()); }
  int held_count() const { return total_ - free_count(); }

  // Checks every invariant; throws InternalError. O(total): for tests and for an idle engine.
  void audit() const;

 private:
  friend class BlockList;
  void give_back(BlockId id);

  int total_;
  std::vector<BlockId> free_;             // a stack: the block that was freed last is the warmest
  std::vector<std::int32_t> references_;  // by id
};

}  // namespace llmsrv
