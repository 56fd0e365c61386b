// One sequence on its way from a prompt to its end: tokens, blocks and how far the model has come.
//
//   tokens      [0 ........ prompt_count) [prompt_count ........ token_count)
//                prompt                    generated
//   computed    [0 ........ computed_count): keys and values are in the cache
//
// A token that a step has drawn counts from the next plan on, when that is made before the token is known
// (awaited_row): the last one of token_count.
//
// Invariants: 0 <= computed_count < token_count while not finished, and all computed tokens are known. RUNNING:
// `blocks` cover at least the computed tokens. SWAPPED: `swap_blocks` cover exactly the computed tokens. Otherwise
// nothing is computed. Blocks are held in these two states only. Thread rule: engine thread only.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cpp/base/types.h"
#include "cpp/sched/block_pool.h"
#include "cpp/sched/prefix_index.h"
#include "cpp/sched/stop.h"

namespace llmsrv {

enum class SequenceState {
  kPending,    // waits, nothing computed yet
  kRunning,    // holds blocks
  kSwapped,    // waits; keys and values lie in the swap pool
  kPreempted,  // waits, to be computed again
  kFinished,   // in a scheduler: only the last token is still to become known
};

// The state's name in statistics: "pending", "running", "swapped", "preempted" or "finished".
const char* sequence_state_name(SequenceState state);

struct Tenant;  // of FairPolicy

// How a sequence uses the prefix cache.
struct CacheRules {
  std::string salt;   // only sequences with the same salt share blocks
  bool reads = true;  // may start from blocks that others computed
  bool fills = true;  // leaves its blocks for others
  // Another choice of the same request: the last, unfilled block of its prompt may be copied.
  std::optional<SequenceId> sibling;
};

// What a policy goes by.
struct Claim {
  int priority = 0;  // lower is more urgent
  std::string tenant;
};

class Sequence {
 public:
  // `prompt` is shared by the choices of a request. REQUIRES: prompt is not empty; rules.max_tokens >= 1
  Sequence(SequenceId id, std::shared_ptr<const std::vector<TokenId>> prompt, StopRules rules, CacheRules cache = {},
           Claim claim = {});

  SequenceId id() const { return id_; }
  SequenceState state() const { return state_; }
  const StopRules& stop_rules() const { return stop_rules_; }
  const CacheRules& cache_rules() const { return cache_rules_; }
  const Claim& claim() const { return claim_; }

  int prompt_count() const { return static_cast<int>(prompt_->size()); }
  int output_count() const { return static_cast<int>(output_.size()) + (awaited_row_ ? 1 : 0); }
  int token_count() const { return prompt_count() + output_count(); }
  int computed_count() const { return computed_count_; }
  // Set: its last token is drawn and not known yet, so output() and token() do not have it. It will be this one of
  // those that are committed next.
  std::optional<int> awaited_row() const { return awaited_row_; }
  int known_count() const { return prompt_count() + static_cast<int>(output_.size()); }
  // Tokens generated since it was last admitted.
  int gained_count() const { return output_count() - output_count_at_admission_; }
  // Tokens the model has still to see before it can name the next one.
  int pending_count() const { return token_count() - computed_count_; }
  // One token behind: it generates. Otherwise it is still reading its prompt (or reading again after a preemption).
  bool decodes() const { return pending_count() == 1 && output_count() > 0; }

  std::span<const TokenId> prompt() const { return *prompt_; }
  std::span<const TokenId> output() const { return output_; }
  // REQUIRES: position < known_count()
  TokenId token(int position) const {
    return position < prompt_count() ? (*prompt_)[static_cast<std::size_t>(position)]
                                     : output_[static_cast<std::size_t>(position - prompt_count())];
  }
  // Copies the tokens of positions [first, first + out.size()). REQUIRES: they are known
  void copy_tokens(int first, std::span<TokenId> out) const;
  // Prompt tokens that were in the prefix cache when the sequence was admitted for the first time.
  int cached_prompt_count() const { return cached_prompt_count_; }
  const BlockList& blocks() const { return blocks_; }
  const BlockList& swap_blocks() const { return swap_blocks_; }

 private:
  friend class Scheduler;
  friend class FairPolicy;

  SequenceId id_;
  std::shared_ptr<const std::vector<TokenId>> prompt_;
  StopRules stop_rules_;
  CacheRules cache_rules_;
  Claim claim_;
  Tenant* tenant_ = nullptr;  // set and owned by FairPolicy
  std::vector<TokenId> output_;
  BlockList blocks_;
  BlockList swap_blocks_;  // of the swap pool
  SequenceState state_ = SequenceState::kPending;
  std::optional<int> awaited_row_;
  int computed_count_ = 0;
  int output_count_at_admission_ = 0;
  int lost_count_ = 0;  // tokens whose keys and values the last preemption gave up
  int cached_prompt_count_ = 0;
  int indexed_count_ = 0;             // leading blocks whose content the index knows
  std::optional<ContentId> content_;  // of the last of those
};

}  // namespace llmsrv
