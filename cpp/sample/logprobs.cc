#include "cpp/sample/logprobs.h"

#include <algorithm>
#include <cmath>

#include "cpp/sample/row_scan.h"

namespace llmsrv {

double log_sum_exp(std::span<const float> logits) {
  constexpr std::size_t kBlock = 256;
  const float max = row_max(logits);
  float weights[kBlock];
  double sum = 0.0;
  for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const std::span<const float> block = logits.subspan(begin, std::min(kBlock, logits.size() - begin));
    for (std::size_t i = 0; i < block.size(); ++i) weights[i] = exp_of_negative(block[i] - max);
    sum += row_sum({weights, block.size()});
  }
  return static_cast<double>(max) + std::log(sum);
}

TokenLogprob token_logprob(std::span<const float> logits, TokenId token, int top_count) {
  const double normalizer = log_sum_exp(logits);
  const auto logprob = [&](float logit) { return static_cast<float>(static_cast<double>(logit) - normalizer); };
  const float chosen = logits[static_cast<std::size_t>(token)];

  TokenLogprob result;
  result.token = token;
  result.logprob = logprob(chosen);
  result.rank = 1 + static_cast<int>(std::count_if(logits.begin(), logits.end(), [&](float l) { return l > chosen; }));

  // A heap of the best so far, its worst on top: one pass, no copy of the vocabulary.
  const auto better = [](const std::pair<TokenId, float>& a, const std::pair<TokenId, float>& b) {
    return a.second > b.second || (a.second == b.second && a.first < b.first);
  };
  const auto count = std::min(static_cast<std::size_t>(top_count), logits.size());
  result.top.reserve(count + 1);
  for (std::size_t i = 0; i < logits.size() && count > 0; ++i) {
    const std::pair<TokenId, float> candidate{static_cast<TokenId>(i), logits[i]};
    if (result.top.size() == count && !better(candidate, result.top.front())) continue;
    result.top.push_back(candidate);
    std::push_heap(result.top.begin(), result.top.end(), better);
    if (result.top.size() > count) {
      std::pop_heap(result.top.begin(), result.top.end(), better);
      result.top.pop_back();
    }
  }
  std::sort_heap(result.top.begin(), result.top.end(), better);
  for (auto& [id, value] : result.top) value = logprob(value);
  return result;
}

}  // namespace llmsrv
