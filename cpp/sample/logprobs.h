// Log-probabilities of a row of raw logits.
#pragma once

#include <span>

#include "cpp/sample/params.h"

namespace llmsrv {

// log(sum(exp(logits))), summed in double in ascending order. REQUIRES: logits is not empty and finite
double log_sum_exp(std::span<const float> logits);

// Log-probability and rank of `token`, and the `top_count` likeliest tokens. REQUIRES: token is in range, logits finite
TokenLogprob token_logprob(std::span<const float> logits, TokenId token, int top_count);

}  // namespace llmsrv
