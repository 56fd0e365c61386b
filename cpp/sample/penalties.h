// Changes to logits before a draw: bias, allowed ids, forbidden ids, repetition, frequency and presence penalties.
// Source of the repetition penalty: Keskar et al., "CTRL" (arXiv 1909.05858), in the form that the field uses: positive
// logits are divided, negative ones multiplied. Frequency and presence penalties: OpenAI's API reference.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpp/base/types.h"
#include "cpp/sample/params.h"

namespace llmsrv {

// Occurrences per token id, all zero between calls. One per thread, so that a call allocates nothing.
using TokenCounts = std::vector<std::int32_t>;

// Applies, in this order: logit bias, penalties, forbidden ids (set to minus infinity), allowed ids (all others
// likewise). What is neither forbidden nor excluded stays finite.
// REQUIRES: counts.size() == logits.size() and all zero; all ids are in the vocabulary; logits are finite.
void apply_penalties(const SamplingParams& params, std::span<const TokenId> prompt, std::span<const TokenId> output,
                     std::span<const TokenId> forbidden, TokenCounts& counts, std::span<float> logits);

}  // namespace llmsrv
