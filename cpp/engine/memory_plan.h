// How much memory an engine takes, by arithmetic, before anything is loaded (promise P8).
#pragma once

#include <cstddef>

#include "cpp/engine/config.h"
#include "cpp/model/decoder.h"
#include "cpp/model/kv_cache.h"
#include "cpp/model/spec.h"
#include "cpp/model/weight_formats.h"
#include "cpp/ops/backend.h"

namespace llmsrv {

struct MemoryPlan {
  WeightFormats weight_formats;
  std::size_t weights_bytes = 0;
  std::size_t workspace_bytes = 0;
  KvCacheShape kv_cache;
  KvCacheShape swap;  // the cache's shape with blocks of its own; none where nothing is ever swapped

  std::size_t total_bytes() const { return weights_bytes + workspace_bytes + kv_cache.bytes() + swap.bytes(); }
};

// Throws std::invalid_argument for a model that the device has no kernels for, and says all that is missing; likewise
// when the KV budget cannot hold one sequence of max_model_len: the message has what is needed, what is available and
// the largest max_model_len that fits. REQUIRES: spec and config are checked.
MemoryPlan plan_memory(const ModelSpec& spec, const WeightFormats& formats, const EngineConfig& config,
                       const Backend& backend);

DecoderLimits decoder_limits(const EngineConfig& config);

}  // namespace llmsrv
