#include "cpp/sched/sequence.h"

#include <utility>

#include "cpp/base/check.h"

namespace llmsrv {

const char* sequence_state_name(SequenceState state) {
  switch (state) {
    case SequenceState::kPending:
      return "pending";
    case SequenceState::kRunning:
      return "running";
    case SequenceState::kSwapped:
      return "swapped";
    case SequenceState::kPreempted:
      return "preempted";
    case SequenceState::kFinished:
      return "finished";
  }
  return "unknown";
}

Sequence::Sequence(SequenceId id, std::shared_ptr<const std::vector<TokenId>> prompt, StopRules rules, CacheRules cache,
                   Claim claim)
    : id_(id),
      prompt_(std::move(prompt)),
      stop_rules_(std::move(rules)),
      cache_rules_(std::move(cache)),
      claim_(std::move(claim)) {
  LLMSRV_CHECK(!prompt_->empty());
  LLMSRV_CHECK(stop_rules_.max_tokens >= 1);
}

void Sequence::copy_tokens(int first, std::span<TokenId> out) const {
  LLMSRV_CHECK(first >= 0 && first + static_cast<int>(out.size()) <= known_count());
  for (TokenId& token : out) token = this->token(first++);
}

}  // namespace llmsrv
