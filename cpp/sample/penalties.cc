#include "cpp/sample/penalties.h"

#include <algorithm>
#include <limits>

namespace llmsrv {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

std::size_t at(TokenId token) { return static_cast<std::size_t>(token); }

// Calls change(logit, count) once for each distinct token, with its number of occurrences.
template <typename Change>
void for_each_distinct(std::span<const TokenId> tokens, TokenCounts& counts, std::span<float> logits, Change change) {
  for (const TokenId token : tokens) ++counts[at(token)];
  for (const TokenId token : tokens) {
    if (counts[at(token)] == 0) continue;
    change(logits[at(token)], counts[at(token)]);
    counts[at(token)] = 0;
  }
}

void penalize_repetition(float penalty, std::span<const TokenId> prompt, std::span<const TokenId> output,
                         TokenCounts& counts, std::span<float> logits) {
  // Prompt and output are one set here: mark the output first, so that what the prompt repeats is penalized once.
  for (const TokenId token : output) counts[at(token)] = 1;
  const auto penalize = [&](TokenId token) {
    float& logit = logits[at(token)];
    // An extreme penalty must not make infinity: that is what marks a token that may not be drawn.
    logit = std::clamp(logit > 0 ? logit / penalty : logit * penalty, -kLargest, kLargest);
  };
  for (const TokenId token : prompt) {
    if (counts[at(token)] == 2) continue;
    penalize(token);
    counts[at(token)] = 2;
  }
  for (const TokenId token : output) {
    if (counts[at(token)] == 1) penalize(token);
    counts[at(token)] = 0;
  }
  for (const TokenId token : prompt) counts[at(token)] = 0;
}

void keep_only(std::span<const TokenId> allowed, TokenCounts& marks, std::span<float> logits) {
  for (const TokenId token : allowed) marks[at(token)] = 1;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (marks[i] == 0) logits[i] = kNever;
  }
  for (const TokenId token : allowed) marks[at(token)] = 0;
}

}  // namespace

void apply_penalties(const SamplingParams& params, std::span<const TokenId> prompt, std::span<const TokenId> output,
                     std::span<const TokenId> forbidden, TokenCounts& counts, std::span<float> logits) {
  for (const auto& [token, bias] : params.logit_bias) logits[at(token)] += bias;
  if (params.repetition_penalty != 1.0f) {
    penalize_repetition(params.repetition_penalty, prompt, output, counts, logits);
  }
  if (params.frequency_penalty != 0.0f || params.presence_penalty != 0.0f) {
    for_each_distinct(output, counts, logits, [&](float& logit, std::int32_t count) {
      logit -= params.frequency_penalty * static_cast<float>(count) + params.presence_penalty;
    });
  }
  for (const TokenId token : forbidden) logits[at(token)] = kNever;
  if (!params.allowed_token_ids.empty()) keep_only(params.allowed_token_ids, counts, logits);
}

}  // namespace llmsrv
