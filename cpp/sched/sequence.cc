#include "cpp/sched/sequence.h"

#include <utility>

#include "cpp/base/check.h"

namespace llmsrv {

Sequence::Sequence(SequenceId id, std::shared_ptr<const std::vector<TokenId>> prompt, StopRules rules)
    : id_(id), prompt_(std::move(prompt)), stop_rules_(std::move(rules)) {
  LLMSRV_CHECK(!prompt_->empty());
  LLMSRV_CHECK(stop_rules_.max_tokens >= 1);
}

}  // namespace llmsrv
