// Rings of blocks, linked in place: no memory beyond two links for a block and two for a ring.
//
// Thread rule: engine thread only. Invariant: a block is in one ring at most.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "cpp/base/types.h"

namespace llmsrv {

class BlockRings {
 public:
  BlockRings(int blocks, int rings) : blocks_(blocks), links_(static_cast<std::size_t>(blocks + rings)) {
    for (BlockId ring = blocks; ring < blocks + rings; ++ring) links(ring) = {ring, ring};
  }

  // REQUIRES: `block` is in no ring
  void push_front(int ring, BlockId block) { link_after(blocks_ + ring, block); }
  void push_back(int ring, BlockId block) { link_after(links(blocks_ + ring).previous, block); }
  // REQUIRES: `block` is in a ring
  void remove(BlockId block) {
    links(links(block).previous).next = links(block).next;
    links(links(block).next).previous = links(block).previous;
  }

  std::optional<BlockId> first(int ring) const { return after(blocks_ + ring); }
  // The block that comes next in the ring of `block`; nothing at the ring's end. REQUIRES: `block` is in a ring
  std::optional<BlockId> after(BlockId block) const {
    const BlockId next = links_[static_cast<std::size_t>(block)].next;
    return next < blocks_ ? std::optional(next) : std::nullopt;
  }

  // The memory it owns.
  std::size_t bytes() const { return links_.capacity() * sizeof(Links); }

 private:
  struct Links {
    BlockId previous;
    BlockId next;
  };
  Links& links(BlockId id) { return links_[static_cast<std::size_t>(id)]; }
  void link_after(BlockId place, BlockId block) {
    const BlockId next = links(place).next;
    links(block) = {place, next};
    links(place).next = block;
    links(next).previous = block;
  }

  const int blocks_;
  std::vector<Links> links_;  // by block, then one entry per ring, which closes it
};

}  // namespace llmsrv
