// Attention over the paged cache: who computes which positions for which queries, and the memory that takes.
//
// Work is cut into items (AttentionItem: a few queries of one kv head and sequence), and those into segments of
// positions. Members take equal shares of the cost, in order; an item that straddles two shares is cut at the nearest
// segment, and joined when all are done. No cut can change a bit: an item's segments are joined alike whoever computed
// them.
//
// Thread rule: engine thread only; run() works with the whole team. No allocation after reserve().
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cpp/base/aligned_buffer.h"
#include "cpp/base/thread_pool.h"
#include "cpp/cpu/kernels.h"
#include "cpp/ops/backend.h"

namespace llmsrv {

class PagedAttention {
 public:
  PagedAttention(ThreadPool& pool, const cpu::KernelTable& kernels);

  std::size_t workspace_bytes(const StepLimits& limits) const;
  void reserve(const StepLimits& limits);

  // All queries of `ranges`. REQUIRES: the task and the ranges are within the limits that were reserved
  void run(const cpu::AttentionTask& task, cpu::KernelTable::Attention* kernel, int kv_heads,
           std::span<const AttentionRange> ranges);

 private:
  // An item, its segments [first_segment, end_segment), and its cost: the number of its dot products.
  struct Piece {
    cpu::AttentionItem item;
    int first_segment;
    int end_segment;
    int first_position;
    std::int64_t cost;
  };

  // Calls visit(piece) for every item, always in the same order.
  template <typename Visit>
  void for_pieces(const cpu::AttentionTask& task, int kv_heads, std::span<const AttentionRange> ranges,
                  const Visit& visit) const;
  // The segment of a piece where the work before `cost`, which counts from the piece's beginning, ends.
  int segment_at(const Piece& piece, std::int64_t cost) const;

  // Results of the item that a member computes alone, and of the one that it begins and another goes on with.
  float* own_partials(int member) const { return partials_at(2 * member); }
  float* shared_partials(int member) const { return partials_at(2 * member + 1); }
  float* partials_at(int index) const {
    return reinterpret_cast<float*>(partials_.data() + partial_bytes_ * static_cast<std::size_t>(index));
  }
  std::size_t partial_bytes(const StepLimits& limits) const;

  ThreadPool& pool_;
  const cpu::KernelTable& kernels_;
  std::size_t partial_bytes_ = 0;                          // of one item, in whole cache lines
  AlignedBuffer partials_;                                 // [members][own, shared]
  std::vector<std::optional<cpu::AttentionItem>> shared_;  // [members]: the item in shared_partials(member)
};

}  // namespace llmsrv
