#include "cpp/model/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpp/base/check.h"

namespace llmsrv {
namespace {

using enum Backend::Accumulate;

struct ActivationCols {
  int hidden, qkv, query, gate_up, intermediate, vocab;
};

ActivationCols activation_cols(const ModelSpec& spec) {
  return {spec.hidden_size,           spec.heads().qkv_cols(), spec.heads().query_cols(),
          2 * spec.intermediate_size, spec.intermediate_size,  spec.vocab_size};
}

// Rows are whole cache lines, so that two threads never write one line, and an odd number of them: with a power of two
// the same columns of all rows would fall on a few places of a cache.
int padded(int cols) { return ((cols + 15) / 16 | 1) * 16; }

std::size_t tensor_bytes(int rows, int cols) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(padded(cols)) * sizeof(float);
}

}  // namespace

Decoder::Decoder(const Weights& weights, Backend& backend, const KvCache& cache, const DecoderLimits& limits)
    : weights_(weights),
      spec_(weights.spec()),
      backend_(backend),
      cache_(cache),
      limits_(limits),
      rope_(spec_, limits.context_len),
      memory_(workspace_bytes(spec_, limits) - RopeTables::bytes(spec_, limits.context_len)) {
  std::size_t used = 0;
  const auto place = [&](int rows, int cols) {
    auto* data = reinterpret_cast<float*>(memory_.data() + used);
    used += tensor_bytes(rows, cols);
    return TensorView{data, DType::kF32, rows, cols, padded(cols)};
  };
  const ActivationCols cols = activation_cols(spec_);
  hidden_ = place(limits_.tokens, cols.hidden);
  qkv_ = place(limits_.tokens, cols.qkv);
  attended_ = place(limits_.tokens, cols.query);
  if (spec_.post_norms) branch_ = place(limits_.tokens, cols.hidden);
  gate_up_ = place(limits_.tokens, cols.gate_up);
  picked_ = place(limits_.logits_rows, cols.hidden);
  logits_ = place(limits_.logits_rows, cols.vocab);
  LLMSRV_CHECK(used == memory_.size());
  backend_.reserve(step_limits(spec_, limits_));
}

void Decoder::forward(const StepInputs& inputs) {
  const int tokens = static_cast<int>(inputs.tokens.size());
  LLMSRV_CHECK(tokens <= limits_.tokens);
  const HeadShape heads = spec_.heads();
  const auto eps = static_cast<float>(spec_.rms_norm_eps);
  const double scale = spec_.attention_scale.value_or(1.0 / std::sqrt(static_cast<double>(heads.head_dim)));

  const TensorView hidden = hidden_.slice_rows(0, tokens);
  const TensorView qkv = qkv_.slice_rows(0, tokens);
  const TensorView attended = attended_.slice_rows(0, tokens);
  const TensorView gate_up = gate_up_.slice_rows(0, tokens);

  backend_.embed(inputs.tokens, weights_.embed(), static_cast<float>(spec_.embedding_scale), hidden);
  for (int index = 0; index < spec_.num_layers; ++index) {
    const LayerWeights& layer = weights_.layer(index);
    const KvLayer cache = cache_.layer(index);
    const Backend::AttentionOptions attention{
        .scale = static_cast<float>(scale),
        .window = spec_.is_windowed(index) ? spec_.sliding_window : std::nullopt,
        .soft_cap = {},
    };
    const auto norms = spec_.head_norms ? std::optional(HeadNorms{layer.q_norm, layer.k_norm, eps}) : std::nullopt;

    backend_.linear(hidden, RmsNorm{layer.attn_norm, eps}, layer.qkv.parts(), layer.qkv_bias, kStore, qkv);
    backend_.rope_and_store_kv(qkv, heads, norms, rope_.layer(index), inputs.positions, inputs.slots, cache);
    backend_.paged_attention(qkv, heads, cache, inputs.ranges, attention, attended);
    add_linear(attended, {}, layer.o, layer.attn_post_norm, hidden);

    backend_.linear(hidden, RmsNorm{layer.ffn_norm, eps}, layer.gate_up.parts(), {}, kStore, gate_up);
    add_linear(gate_up, GatedMul{spec_.gate}, layer.down, layer.ffn_post_norm, hidden);
  }
}

void Decoder::add_linear(TensorView in, const Prologue& prologue, const PackedMatrix& weight,
                         std::span<const float> post_norm, TensorView hidden) {
  if (post_norm.empty()) return backend_.linear(in, prologue, {&weight, 1}, {}, kAdd, hidden);
  const TensorView branch = branch_.slice_rows(0, in.rows);
  backend_.linear(in, prologue, {&weight, 1}, {}, kStore, branch);
  backend_.add_rms_norm(branch, {post_norm, static_cast<float>(spec_.rms_norm_eps)}, hidden);
}

TensorView Decoder::logits(std::span<const int> rows) {
  const int count = static_cast<int>(rows.size());
  LLMSRV_CHECK(count <= limits_.logits_rows);
  const TensorView picked = picked_.slice_rows(0, count);
  for (int i = 0; i < count; ++i) {
    const int row = rows[static_cast<std::size_t>(i)];
    LLMSRV_CHECK(row >= 0 && row < limits_.tokens);
    std::memcpy(picked.f32_row(i), hidden_.f32_row(row), static_cast<std::size_t>(spec_.hidden_size) * sizeof(float));
  }
  const TensorView logits = logits_.slice_rows(0, count);
  const RmsNorm norm{weights_.final_norm(), static_cast<float>(spec_.rms_norm_eps)};
  backend_.linear(picked, norm, {&weights_.head(), 1}, {}, kStore, logits);
  return logits;
}

StepLimits Decoder::step_limits(const ModelSpec& spec, const DecoderLimits& limits) {
  const ActivationCols cols = activation_cols(spec);
  return {std::max(limits.tokens, limits.logits_rows), limits.sequences, limits.context_len,
          std::max({cols.hidden, cols.query, cols.intermediate}), spec.heads()};
}

std::size_t Decoder::workspace_bytes(const ModelSpec& spec, const DecoderLimits& limits) {
  const ActivationCols cols = activation_cols(spec);
  std::size_t bytes = RopeTables::bytes(spec, limits.context_len);
  for (const int width : {cols.hidden, cols.qkv, cols.query, cols.gate_up}) {
    bytes += tensor_bytes(limits.tokens, width);
  }
  if (spec.post_norms) bytes += tensor_bytes(limits.tokens, cols.hidden);
  return bytes + tensor_bytes(limits.logits_rows, cols.hidden) + tensor_bytes(limits.logits_rows, cols.vocab);
}

}  // namespace llmsrv
