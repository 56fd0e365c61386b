// What one step computes: a plain value that could be printed, recorded or replayed.
#pragma once

#include <vector>

#include "cpp/base/types.h"

namespace llmsrv {

// Consecutive tokens of one sequence.
struct PlannedRange {
  SequenceId sequence = 0;
  int first_position = 0;
  int token_count = 0;
  bool samples = false;  // the range reaches the sequence's last token, so the next one is drawn

  bool operator==(const PlannedRange&) const = default;
};

struct StepPlan {
  // Moves of whole blocks before the model runs: these three lists in this order, and each list in its own. Only so
  // is every source read before something else is written there.
  std::vector<BlockMove> swap_outs;  // from the KV cache to the swap pool
  std::vector<BlockMove> copies;     // within the KV cache: the head of a block that another prompt shares
  std::vector<BlockMove> swap_ins;   // from the swap pool to the KV cache

  std::vector<PlannedRange> ranges;
  int token_count = 0;

  // Transitions. A sequence is in one list at most.
  std::vector<SequenceId> admitted;   // PENDING or PREEMPTED -> RUNNING
  std::vector<SequenceId> resumed;    // SWAPPED -> RUNNING
  std::vector<SequenceId> preempted;  // RUNNING -> PREEMPTED
  std::vector<SequenceId> swapped;    // RUNNING -> SWAPPED

  bool empty() const { return ranges.empty(); }
  bool took_blocks_away() const { return !preempted.empty() || !swapped.empty(); }
  void clear() {
    for (auto* moves : {&swap_outs, &copies, &swap_ins}) moves->clear();
    for (auto* ids : {&admitted, &resumed, &preempted, &swapped}) ids->clear();
    ranges.clear();
    token_count = 0;
  }
};

}  // namespace llmsrv
