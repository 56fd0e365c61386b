// Counts and times the transitions PENDING -> RUNNING -> SWAPPED or PREEMPTED -> FINISHED of all sequences.
// Thread rule: engine thread only.
#pragma once

#include <array>
#include <map>
#include <string>

#include "cpp/engine/stats.h"
#include "cpp/sched/sequence.h"

namespace llmsrv {

// The state of one sequence, and since when.
struct StateClock {
  SequenceState state = SequenceState::kPending;
  double since_s = 0.0;  // monotonic
};

class StateTimes {
 public:
  // A new sequence.
  StateClock begin(double now_s) {
    enter(SequenceState::kPending);
    return {SequenceState::kPending, now_s};
  }

  void move(StateClock& clock, SequenceState to, double now_s) {
    StateStats& from = of(clock.state);
    --from.current;
    from.seconds += now_s - clock.since_s;
    clock = {to, now_s};
    enter(to);
  }

  std::map<std::string, StateStats> by_name() const {
    std::map<std::string, StateStats> result;
    for (std::size_t i = 0; i < stats_.size(); ++i) {
      result[sequence_state_name(static_cast<SequenceState>(i))] = stats_[i];
    }
    return result;
  }

 private:
  static constexpr std::size_t kStates = static_cast<std::size_t>(SequenceState::kFinished) + 1;

  StateStats& of(SequenceState state) { return stats_[static_cast<std::size_t>(state)]; }
  // A finished sequence is gone: it is counted, and is nowhere.
  void enter(SequenceState state) {
    ++of(state).entered;
    if (state != SequenceState::kFinished) ++of(state).current;
  }

  std::array<StateStats, kStates> stats_;
};

}  // namespace llmsrv
