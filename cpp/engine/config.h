// Limits and sizes of an engine: the one declaration of these options. The Python side is held against it by a test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cpp/base/types.h"
#include "cpp/model/spec.h"
#include "cpp/sched/policy.h"
#include "cpp/sched/scheduler.h"
#include "cpp/tensor/dtype.h"

namespace llmsrv {

struct EngineConfig {
  int max_model_len = 0;                                 // longest prompt plus output; required
  int block_size = 16;                                   // tokens per KV block: 8, 16 or 32
  int max_num_seqs = 64;                                 // sequences running at once
  int max_num_batched_tokens = 512;                      // tokens per step, >= max_num_seqs
  std::size_t kv_cache_memory = std::size_t{512} << 20;  // bytes
  DType kv_cache_dtype = DType::kBf16;
  std::size_t swap_space = std::size_t{128} << 20;  // bytes of host memory for keys and values of preempted sequences
  PreemptionMode preemption_mode = PreemptionMode::kAuto;
  SchedulingPolicy scheduling_policy = SchedulingPolicy::kFcfs;
  std::map<std::string, double> tenant_weights;  // under the policy "fair"; 1 for those that are not named
  std::optional<double> idle_timeout;            // seconds without requests until the KV memory is given back
  std::optional<std::string> trace_steps;        // file that gets every step's plan as a line of JSON
  int max_queued_requests = 1024;                // accepted and not yet running
  std::int64_t max_queued_tokens = 1 << 20;      // prompt tokens of those
  int max_logprobs = 20;                         // largest top_logprobs
  int max_choices = 128;                         // largest n
  bool prefix_cache = true;                      // share computed prefixes between requests
  int prefix_hash_bits = 128;                    // of the prefix index; shorter only to test what collisions do
  bool deterministic = true;                     // promise P3; without it a device may choose faster products
  std::vector<TokenId> eos_token_ids;            // the model's own
};

// Throws std::invalid_argument that names every option that is out of range or does not fit the model.
void check_config(const EngineConfig& config, const ModelSpec& spec);

}  // namespace llmsrv
