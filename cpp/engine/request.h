// One generation as the core sees it: numbers and limits, no text but the strings that are only checked here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cpp/base/types.h"
#include "cpp/sample/params.h"

namespace llmsrv {

struct StoppingParams {
  std::optional<int> max_tokens;  // unset: what the context leaves
  int min_tokens = 0;
  std::vector<TokenId> stop_token_ids;
  std::vector<std::string> stop_strings;  // matched by the front end's detokenizer; here so that one gate checks all
  bool ignore_eos = false;
  std::optional<double> time_limit_s;  // from submission; what is done by then is the result
};

struct OutputOptions {
  bool logprobs = false;
  int top_logprobs = 0;
  bool prompt_logprobs = false;
};

struct Request {
  std::string id;  // unique among the requests in flight
  std::vector<TokenId> prompt;
  SamplingParams sampling;
  std::optional<std::uint64_t> seed;  // unset: the engine's choice
  int n = 1;                          // sequences to draw
  StoppingParams stopping;
  OutputOptions output;
  std::string cache_salt;            // prefixes are shared only within one salt
  bool bypass_prefix_cache = false;  // neither read nor fill the prefix cache
  int priority = 0;                  // lower runs earlier, under the policy "priority"
  std::string tenant;                // whose share of the tokens it takes, under the policy "fair"
  // Seconds from submission.
  std::optional<double> queue_timeout_s;  // longest wait for a place in a batch, then RESOURCE_EXHAUSTED
  std::optional<double> deadline_s;       // afterwards nobody reads the answer: DEADLINE_EXCEEDED
};

}  // namespace llmsrv
