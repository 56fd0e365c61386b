// Writes all that enters the scheduler and every plan that it makes, one JSON object per line, so that the same
// decisions can be made again without a model (python/llmsrv/replay.py reads it):
//
//   {"limits": {...}}                 once, first
//   {"add": {...}}  {"remove": ID}  {"clear_prefix_cache": BLOCKS_FREED}
//   {"costs": {...}}                  whenever they changed
//   {"plan": {...}}                   the fields of StepPlan; an empty one too, since policies change with every plan
//   {"commit": [TOKEN, ...]}          of each plan that is not empty, in their order; one plan may be made before it
//
// The file holds token ids of prompts and outputs, and the key of the prefix index. When it cannot be written any more,
// tracing ends and the engine goes on. Thread rule: engine thread only.
#pragma once

#include <fstream>
#include <optional>
#include <span>
#include <string>

#include "cpp/sched/scheduler.h"

namespace llmsrv {

class StepTrace {
 public:
  // Replaces the file. Throws std::invalid_argument when it cannot be opened.
  StepTrace(const std::string& path, const SchedulerLimits& limits);

  void add(const Sequence& sequence);
  void remove(SequenceId id);
  void clear_prefix_cache(int blocks_freed);
  void costs(const PreemptionCosts& costs);
  void plan(const StepPlan& plan);
  void commit(std::span<const TokenId> tokens);
  // Brings everything to the file.
  void flush() { file_.flush(); }

 private:
  std::ofstream file_;
  std::optional<PreemptionCosts> last_costs_;
};

}  // namespace llmsrv
