#include "cpp/model/spec.h"

#include <iterator>
#include <stdexcept>

#include "cpp/ops/backend.h"

namespace llmsrv {
namespace {

// Far beyond any model; keeps products of two dimensions inside an int.
constexpr int kDimensionMax = 1 << 24;
constexpr int kLayersMax = 4096;

}  // namespace

void check_spec(const ModelSpec& spec) {
  std::string problems;
  const auto require = [&](bool holds, const std::string& problem) {
    if (!holds) problems += (problems.empty() ? "" : "; ") + problem;
  };
  const auto in_range = [&](int value, int max, const char* name) {
    require(value >= 1 && value <= max,
            std::string(name) + " must be in 1.." + std::to_string(max) + ", is " + std::to_string(value));
  };
  in_range(spec.vocab_size, kDimensionMax, "vocab_size");
  in_range(spec.hidden_size, kDimensionMax, "hidden_size");
  in_range(spec.intermediate_size, kDimensionMax, "intermediate_size");
  in_range(spec.num_layers, kLayersMax, "num_layers");
  in_range(spec.num_heads, kLayersMax, "num_heads");
  in_range(spec.num_kv_heads, kLayersMax, "num_kv_heads");
  in_range(spec.head_dim, kHeadDimMax, "head_dim");
  in_range(spec.max_position, kDimensionMax, "max_position");
  require(spec.head_dim % 2 == 0, "head_dim must be even");
  require(spec.num_kv_heads < 1 || spec.num_heads % spec.num_kv_heads == 0,
          "num_heads must be a multiple of num_kv_heads");
  require(spec.rms_norm_eps > 0 && spec.rms_norm_eps < 1, "rms_norm_eps must be in (0, 1)");
  require(spec.rope_theta > 0, "rope_theta must be positive");
  require(!spec.sliding_window || *spec.sliding_window >= 1, "sliding_window must be at least 1");
  require(spec.windowed_layers.empty() || (spec.sliding_window && std::ssize(spec.windowed_layers) == spec.num_layers),
          "windowed_layers needs a sliding_window and one entry for each layer");
  require(spec.window_rope_theta.value_or(1.0) > 0, "window_rope_theta must be positive");
  require(spec.attention_scale.value_or(1.0) > 0, "attention_scale must be positive");
  require(spec.embedding_scale > 0, "embedding_scale must be positive");
  if (spec.rope_scaling) {
    const RopeScaling& scaling = *spec.rope_scaling;
    require(scaling.factor > 0, "rope_scaling.factor must be positive");
    if (scaling.kind == RopeScalingKind::kLlama3) {
      require(scaling.low_freq_factor > 0 && scaling.high_freq_factor > scaling.low_freq_factor,
              "rope_scaling needs 0 < low_freq_factor < high_freq_factor");
      require(scaling.original_max_position >= 1, "rope_scaling.original_max_position must be at least 1");
    }
  }
  if (!problems.empty()) throw std::invalid_argument("impossible model: " + problems);
}

std::vector<WeightInfo> expected_weights(const ModelSpec& spec) {
  const int query_cols = spec.heads().query_cols();
  const int kv_cols = spec.heads().kv_cols();
  std::vector<WeightInfo> weights = {{"embed", {spec.vocab_size, spec.hidden_size}}};
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    weights.push_back({prefix + "attn_norm", {spec.hidden_size}});
    weights.push_back({prefix + "q", {query_cols, spec.hidden_size}});
    weights.push_back({prefix + "k", {kv_cols, spec.hidden_size}});
    weights.push_back({prefix + "v", {kv_cols, spec.hidden_size}});
    if (spec.qkv_bias) {
      weights.push_back({prefix + "q_bias", {query_cols}});
      weights.push_back({prefix + "k_bias", {kv_cols}});
      weights.push_back({prefix + "v_bias", {kv_cols}});
    }
    if (spec.head_norms) {
      weights.push_back({prefix + "q_norm", {spec.head_dim}});
      weights.push_back({prefix + "k_norm", {spec.head_dim}});
    }
    weights.push_back({prefix + "o", {spec.hidden_size, query_cols}});
    if (spec.post_norms) weights.push_back({prefix + "attn_post_norm", {spec.hidden_size}});
    weights.push_back({prefix + "ffn_norm", {spec.hidden_size}});
    weights.push_back({prefix + "gate", {spec.intermediate_size, spec.hidden_size}});
    weights.push_back({prefix + "up", {spec.intermediate_size, spec.hidden_size}});
    weights.push_back({prefix + "down", {spec.hidden_size, spec.intermediate_size}});
    if (spec.post_norms) weights.push_back({prefix + "ffn_post_norm", {spec.hidden_size}});
  }
  weights.push_back({"final_norm", {spec.hidden_size}});
  if (!spec.tied_embeddings) weights.push_back({"lm_head", {spec.vocab_size, spec.hidden_size}});
  return weights;
}

}  // namespace llmsrv
