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
  std::vector<PlannedRange> ranges;
  std::vector<SequenceId> admitted;   // PENDING or PREEMPTED -> RUNNING in this step
  std::vector<SequenceId> preempted;  // RUNNING -> PREEMPTED in this step
  int token_count = 0;

  bool empty() const { return ranges.empty(); }
  void clear() {
    ranges.clear();
    admitted.clear();
    preempted.clear();
    token_count = 0;
  }
};

}  // namespace llmsrv
