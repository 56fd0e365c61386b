#include "cpp/engine/memory_plan.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "cpp/model/weights.h"

namespace llmsrv {
namespace {

std::string mebibytes(std::size_t bytes) {
  return std::to_string(bytes / (1 << 20)) + "." + std::to_string(bytes % (1 << 20) * 10 / (1 << 20)) + " MiB";
}

void require_kernels(const Backend& backend, const KernelNeeds& needs) {
  std::string text;
  for (const std::string& lacking : backend.lacks(needs)) text += (text.empty() ? "" : "; ") + lacking;
  if (!text.empty()) throw std::invalid_argument("this device has no kernels for " + text);
}

// The most blocks of this shape that the bytes hold; their tokens can be counted in an int.
int blocks_in(std::size_t bytes, const KvCacheShape& shape) {
  const int most = std::numeric_limits<int>::max() / shape.block_size;
  return static_cast<int>(std::min<std::size_t>(bytes / shape.block_bytes(), static_cast<std::size_t>(most)));
}

}  // namespace

DecoderLimits decoder_limits(const EngineConfig& config) {
  return {config.max_num_batched_tokens, config.max_num_seqs, config.max_num_seqs, config.max_model_len,
          config.max_logprobs};
}

MemoryPlan plan_memory(const ModelSpec& spec, const WeightFormats& formats, const EngineConfig& config,
                       const Backend& backend) {
  require_kernels(backend, Decoder::kernel_needs(spec, formats, config.kv_cache_dtype));
  const DecoderLimits limits = decoder_limits(config);
  MemoryPlan plan;
  plan.weight_formats = formats;
  plan.weights_bytes = Weights::weights_bytes(spec, formats);
  plan.workspace_bytes =
      Decoder::workspace_bytes(spec, limits, backend) + backend.workspace_bytes(Decoder::step_limits(spec, limits));

  KvCacheShape& cache = plan.kv_cache;
  cache.layers = spec.num_layers;
  cache.block_size = config.block_size;
  cache.dtype = config.kv_cache_dtype;
  cache.layer_block_bytes = backend.kv_block_bytes(spec.heads(), config.block_size, config.kv_cache_dtype);
  cache.blocks = blocks_in(config.kv_cache_memory, cache);
  plan.swap = cache;
  plan.swap.blocks = config.preemption_mode == PreemptionMode::kRecompute ? 0 : blocks_in(config.swap_space, cache);

  const int needed = (config.max_model_len + config.block_size - 1) / config.block_size;
  if (cache.blocks < needed) {
    throw std::invalid_argument("kv_cache_memory is too small: one sequence of max_model_len " +
                                std::to_string(config.max_model_len) + " needs " +
                                mebibytes(cache.block_bytes() * static_cast<std::size_t>(needed)) + ", available are " +
                                mebibytes(config.kv_cache_memory) + "; the largest max_model_len that fits is " +
                                std::to_string(cache.blocks * config.block_size));
  }
  return plan;
}

}  // namespace llmsrv
