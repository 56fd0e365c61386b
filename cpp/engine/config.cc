#include "cpp/engine/config.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace llmsrv {
namespace {

// Giving memory back and taking it again costs about 0.2 s per GiB: more often than this is surely a mistake.
constexpr double kMinIdleTimeoutS = 0.1;

// What is wrong, all of it.
struct Problems {
  std::string text;
  void require(bool holds, const std::string& problem) {
    if (!holds) text += (text.empty() ? "" : "; ") + problem;
  }
};

void check_scheduling(const EngineConfig& config, Problems& problems) {
  problems.require(config.preemption_mode != PreemptionMode::kSwap || config.swap_space > 0,
                   "swap_space must be above 0 when preemption_mode is swap");
  for (const auto& [tenant, weight] : config.tenant_weights) {
    problems.require(!tenant.empty(), "tenant_weights: a tenant's name must not be empty");
    problems.require(std::isfinite(weight) && weight > 0,
                     "tenant_weights: the weight of '" + tenant + "' must be a finite number above 0");
  }
  problems.require(
      !config.idle_timeout || (*config.idle_timeout >= kMinIdleTimeoutS && std::isfinite(*config.idle_timeout)),
      "idle_timeout must be at least 0.1 seconds");
  problems.require(!config.trace_steps || !config.trace_steps->empty(), "trace_steps must not be empty");
}

}  // namespace

void check_config(const EngineConfig& config, const ModelSpec& spec) {
  Problems problems;
  const auto require = [&](bool holds, const std::string& problem) { problems.require(holds, problem); };
  require(config.max_model_len >= 2, "max_model_len must be at least 2");
  require(config.max_model_len <= spec.max_position, "max_model_len is " + std::to_string(config.max_model_len) +
                                                         ", but the model ends at " +
                                                         std::to_string(spec.max_position));
  require(config.block_size == 8 || config.block_size == 16 || config.block_size == 32,
          "block_size must be 8, 16 or 32, is " + std::to_string(config.block_size));
  require(config.max_num_seqs >= 1 && config.max_num_seqs <= 65536, "max_num_seqs must be in 1..65536");
  require(config.max_num_batched_tokens >= config.max_num_seqs,
          "max_num_batched_tokens (" + std::to_string(config.max_num_batched_tokens) +
              ") must be at least max_num_seqs (" + std::to_string(config.max_num_seqs) + ")");
  require(config.max_num_batched_tokens <= 1 << 20, "max_num_batched_tokens must be at most 1048576");
  require(config.max_queued_requests >= 1, "max_queued_requests must be at least 1");
  require(config.max_queued_tokens >= 1, "max_queued_tokens must be at least 1");
  require(config.max_logprobs >= 0 && config.max_logprobs <= spec.vocab_size, "max_logprobs must be in 0..vocab_size");
  require(config.max_choices >= 1, "max_choices must be at least 1");
  require(config.prefix_hash_bits >= 1 && config.prefix_hash_bits <= 128, "prefix_hash_bits must be in 1..128");
  for (const TokenId token : config.eos_token_ids) {
    require(token >= 0 && token < spec.vocab_size,
            "eos_token_ids: " + std::to_string(token) + " is not in the vocabulary");
  }
  check_scheduling(config, problems);
  if (!problems.text.empty()) throw std::invalid_argument(problems.text);
}

}  // namespace llmsrv
