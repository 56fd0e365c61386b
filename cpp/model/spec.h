// What a decoder-only transformer is, as data. A new architecture is a new way to fill this.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "cpp/ops/backend.h"

namespace llmsrv {

enum class RopeScalingKind { kLinear, kLlama3 };

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kLinear;
  double factor = 1.0;
  double low_freq_factor = 1.0;  // kLlama3 only, as the next two
  double high_freq_factor = 4.0;
  int original_max_position = 8192;
};

struct ModelSpec {
  int vocab_size = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_layers = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int max_position = 0;
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000.0;
  std::optional<RopeScaling> rope_scaling;
  bool qkv_bias = false;
  bool tied_embeddings = false;             // the output head is the embedding table
  std::optional<int> sliding_window;        // tokens that a row of a windowed layer attends to, itself included
  std::vector<bool> windowed_layers;        // [layers]: those with the window; empty means all
  std::optional<double> window_rope_theta;  // base of the windowed layers' RoPE, not scaled; if unset, as elsewhere
  std::optional<double> attention_scale;    // of a query times a key; if unset, 1 / sqrt(head_dim)
  double embedding_scale = 1.0;
  GateKind gate = GateKind::kSilu;
  bool head_norms = false;  // RMS norm of each query and key before its rotation
  bool post_norms = false;  // RMS norm of what attention and feed-forward add to the residual stream

  HeadShape heads() const { return {num_heads, num_kv_heads, head_dim}; }
  bool is_windowed(int layer) const {
    return sliding_window && (windowed_layers.empty() || windowed_layers[static_cast<std::size_t>(layer)]);
  }
};

// Throws std::invalid_argument that names every impossible field.
void check_spec(const ModelSpec& spec);

// A weight by our name. Matrices are [out, in], vectors [n].
struct WeightInfo {
  std::string name;
  std::vector<int> shape;
};

// All weights of a model, in the order of its layers.
std::vector<WeightInfo> expected_weights(const ModelSpec& spec);

}  // namespace llmsrv
