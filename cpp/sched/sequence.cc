#include "cpp/sched/sequence.h"

#include <utility>

#include "cpp/base/check.h"

namespace llmsrv {

Sequence::Sequence(SequenceId id, std::shared_ptr<const std::vector<TokenId>> prompt, StopRules rules, CacheRules cache)
    : id_(id), prompt_(std::move(prompt)), stop_rules_(std::move(rules)), cache_rules_(std::move(cache)) {
  LLMSRV_CHECK(!prompt_->empty());
  LLMSRV_CHECK(stop_rules_.max_tokens >= 1);
}

void Sequence::copy_tokens(int first, std::span<TokenId> out) const {
  LLMSRV_CHECK(first >= 0 && first + static_cast<int>(out.size()) <= token_count());
  for (TokenId& token : out) token = this->token(first++);
}

}  // namespace llmsrv
