#include "cpp/sched/stop.h"

#include <algorithm>

namespace llmsrv {
namespace {

bool contains(const std::vector<TokenId>& ids, TokenId token) {
  return std::find(ids.begin(), ids.end(), token) != ids.end();
}

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kTimeLimit:
      return "time_limit";
    case FinishReason::kAborted:
      return "aborted";
  }
  return "unknown";
}

std::optional<Finish> check_stop(const StopRules& rules, TokenId token, int output_count) {
  if (output_count >= rules.min_tokens) {
    if (contains(rules.eos_token_ids, token)) return Finish{FinishReason::kStop, token, true};
    if (contains(rules.stop_token_ids, token)) return Finish{FinishReason::kStop, token, false};
  }
  if (output_count >= rules.max_tokens) return Finish{FinishReason::kLength, std::nullopt, false};
  return std::nullopt;
}

}  // namespace llmsrv
