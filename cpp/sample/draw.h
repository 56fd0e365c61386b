// A draw of one token per row: what a row needs beside its logits, and what came of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "cpp/base/types.h"
#include "cpp/sample/params.h"

namespace llmsrv {

// Draws that may wait for somebody to take their results.
constexpr std::size_t kDrawsMost = 2;

// REQUIRES: allowed ids, or all ids when none are named, hold one that is not forbidden; ids are in the vocabulary.
struct SampleRow {
  const SamplingParams* params = nullptr;
  std::span<const TokenId> prompt;
  std::span<const TokenId> output;
  std::span<const TokenId> forbidden;  // ids that may not be drawn now (stop ids before min_tokens)
  std::uint64_t seed = 0;
  std::uint32_t choice = 0;
  std::optional<int> top_logprobs;  // set: tell the log-probability, with this many alternatives
  // Set: the output has one more token, which the host does not know yet: what this row of the draw before got.
  std::optional<int> pending;

  // The place of the token to be drawn: what keys its random number, beside seed and choice.
  std::uint32_t place() const { return static_cast<std::uint32_t>(prompt.size() + output.size() + (pending ? 1 : 0)); }
};

struct Sampled {
  TokenId token = 0;
  std::optional<TokenLogprob> logprob;
  bool finite = true;  // false: the logits hold NaN or infinity, so nothing was drawn
};

}  // namespace llmsrv
