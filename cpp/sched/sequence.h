// One sequence on its way from a prompt to its end: tokens, blocks and how far the model has come.
//
//   tokens      [0 ........ prompt_count) [prompt_count ........ token_count)
//                prompt                    generated
//   computed    [0 ........ computed_count): keys and values are in the cache
//
// Invariants: 0 <= computed_count < token_count while not finished; blocks cover at least the computed tokens; a
// sequence that is not RUNNING holds no block. Thread rule: engine thread only.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cpp/base/types.h"
#include "cpp/sched/block_pool.h"
#include "cpp/sched/stop.h"

namespace llmsrv {

enum class SequenceState { kPending, kRunning, kPreempted, kFinished };

class Sequence {
 public:
  // `prompt` is shared by the choices of a request. REQUIRES: prompt is not empty; rules.max_tokens >= 1
  Sequence(SequenceId id, std::shared_ptr<const std::vector<TokenId>> prompt, StopRules rules);

  SequenceId id() const { return id_; }
  SequenceState state() const { return state_; }
  const StopRules& stop_rules() const { return stop_rules_; }

  int prompt_count() const { return static_cast<int>(prompt_->size()); }
  int output_count() const { return static_cast<int>(output_.size()); }
  int token_count() const { return prompt_count() + output_count(); }
  int computed_count() const { return computed_count_; }
  // Tokens the model has still to see before it can name the next one.
  int pending_count() const { return token_count() - computed_count_; }
  // One token behind: it generates. Otherwise it is still reading its prompt (or reading again after a preemption).
  bool decodes() const { return pending_count() == 1 && output_count() > 0; }

  std::span<const TokenId> prompt() const { return *prompt_; }
  std::span<const TokenId> output() const { return output_; }
  TokenId token(int position) const {
    return position < prompt_count() ? (*prompt_)[static_cast<std::size_t>(position)]
                                     : output_[static_cast<std::size_t>(position - prompt_count())];
  }
  const BlockList& blocks() const { return blocks_; }
  int preemption_count() const { return preemption_count_; }

 private:
  friend class Scheduler;

  SequenceId id_;
  std::shared_ptr<const std::vector<TokenId>> prompt_;
  StopRules stop_rules_;
  std::vector<TokenId> output_;
  BlockList blocks_;
  SequenceState state_ = SequenceState::kPending;
  int computed_count_ = 0;
  int preemption_count_ = 0;
};

}  // namespace llmsrv
