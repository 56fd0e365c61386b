#include "cpp/engine/config.h"

#include <stdexcept>
#include <string>

namespace llmsrv {

void check_config(const EngineConfig& config, const ModelSpec& spec) {
  std::string problems;
  const auto require = [&](bool holds, const std::string& problem) {
    if (!holds) problems += (problems.empty() ? "" : "; ") + problem;
  };
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
  if (!problems.empty()) throw std::invalid_argument(problems);
}

}  // namespace llmsrv
