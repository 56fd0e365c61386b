#include "cpp/sched/sequence.h"

#include <algorithm>
#include <utility>

#include "cpp/base/check.h"

namespace llmsrv {

namespace {
// Outputs of ordinary length never make their vector grow in a step.
constexpr int kReservedOutputMax = 1024;
}  // namespace

Sequence::Sequence(SequenceId id, std::shared_ptr<const std::vector<TokenId>> prompt, StopRules rules)
    : id_(id), prompt_(std::move(prompt)), stop_rules_(std::move(rules)) {
  LLMSRV_CHECK(!prompt_->empty());
  LLMSRV_CHECK(stop_rules_.max_tokens >= 1);
  output_.reserve(static_cast<std::size_t>(std::min(stop_rules_.max_tokens, kReservedOutputMax)));
}

}  // namespace llmsrv
