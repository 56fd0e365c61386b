// When a sequence ends, as data and one rule. Stop strings are text and are matched by the front end's detokenizer.
#pragma once

#include <optional>
#include <vector>

#include "cpp/base/types.h"

namespace llmsrv {

enum class FinishReason { kStop, kLength, kTimeLimit, kAborted };

// The reason's name in outputs and statistics: "stop", "length", "time_limit" or "aborted".
const char* finish_reason_name(FinishReason reason);

struct Finish {
  FinishReason reason = FinishReason::kLength;
  std::optional<TokenId> stop_token;  // set when a token stopped it; a stop string is the front end's
  bool stopped_by_eos = false;        // the stop token is the model's own end of sequence
};

struct StopRules {
  int max_tokens = 0;                   // >= 1
  int min_tokens = 0;                   // no stop token ends the sequence before this many
  std::vector<TokenId> stop_token_ids;  // the request's own
  std::vector<TokenId> eos_token_ids;   // the model's; empty when the request ignores them
};

// Whether the sequence ends with `token`, its `output_count`-th generated token.
std::optional<Finish> check_stop(const StopRules& rules, TokenId token, int output_count);

}  // namespace llmsrv
