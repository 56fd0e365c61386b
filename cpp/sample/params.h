// How the next token of one sequence is drawn, and what is told about it. Values are validated before they get here.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "cpp/base/types.h"

namespace llmsrv {

struct SamplingParams {
  float temperature = 1.0f;         // 0 is greedy
  float top_p = 1.0f;               // (0, 1]
  int top_k = 0;                    // 0 keeps all
  float min_p = 0.0f;               // [0, 1]
  float frequency_penalty = 0.0f;   // [-2, 2], over generated tokens
  float presence_penalty = 0.0f;    // [-2, 2], over generated tokens
  float repetition_penalty = 1.0f;  // > 0, over prompt and generated tokens
  std::vector<std::pair<TokenId, float>> logit_bias;
  std::vector<TokenId> allowed_token_ids;  // empty allows all

  // True when the drawn token is a function of more than the raw logits' order.
  bool changes_logits() const {
    return !logit_bias.empty() || !allowed_token_ids.empty() || frequency_penalty != 0.0f || presence_penalty != 0.0f ||
           repetition_penalty != 1.0f;
  }
};

// The log-probability of one token in the model's raw distribution: before bias, penalties and temperature.
struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0.0f;
  int rank = 1;                                // 1 + number of likelier tokens
  std::vector<std::pair<TokenId, float>> top;  // likeliest first, ties by id
};

}  // namespace llmsrv
