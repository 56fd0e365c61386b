#include "cpp/model/decoder.h"

#include <algorithm>
#include <cmath>

#include "cpp/base/check.h"

namespace llmsrv {
namespace {

using enum Backend::Accumulate;

// Where each tensor of activations starts.
constexpr std::size_t kAlignment = 256;

}  // namespace

// All tensors of activations, placed one behind the other from address 0 on.
struct Decoder::Activations {
  TensorView hidden, qkv, attended, branch, gate_up, picked, logits;
  std::size_t bytes = 0;
};

Decoder::Activations Decoder::activations(const ModelSpec& spec, const DecoderLimits& limits, const Backend& backend) {
  Activations made;
  const auto place = [&](int rows, int cols, DType dtype) {
    const int stride = backend.row_stride(cols);
    const std::size_t at = made.bytes;
    const std::size_t bytes = static_cast<std::size_t>(rows) * static_cast<std::size_t>(stride) * dtype_bytes(dtype);
    made.bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return TensorView{reinterpret_cast<void*>(at), dtype, rows, cols, stride};
  };
  const DType inner = backend.inner_dtype();
  made.hidden = place(limits.tokens, spec.hidden_size, DType::kF32);
  made.qkv = place(limits.tokens, spec.heads().qkv_cols(), inner);
  made.attended = place(limits.tokens, spec.heads().query_cols(), inner);
  if (spec.post_norms) made.branch = place(limits.tokens, spec.hidden_size, DType::kF32);
  made.gate_up = place(limits.tokens, 2 * spec.intermediate_size, inner);
  made.picked = place(limits.logits_rows, spec.hidden_size, DType::kF32);
  made.logits = place(limits.logits_rows, spec.vocab_size, DType::kF32);
  return made;
}

Decoder::Decoder(const Weights& weights, Backend& backend, const KvCache& cache, const DecoderLimits& limits)
    : weights_(weights),
      spec_(weights.spec()),
      backend_(backend),
      cache_(cache),
      limits_(limits),
      rope_(spec_, limits.context_len) {
  const Activations placed = activations(spec_, limits_, backend_);
  memory_ = backend_.allocate(placed.bytes, MemoryPlace::kDevice);
  const auto moved = [&](TensorView view) {
    view.data = memory_->data() + reinterpret_cast<std::uintptr_t>(view.data);
    return view;
  };
  hidden_ = moved(placed.hidden);
  qkv_ = moved(placed.qkv);
  attended_ = moved(placed.attended);
  branch_ = moved(placed.branch);
  gate_up_ = moved(placed.gate_up);
  picked_ = moved(placed.picked);
  logits_ = moved(placed.logits);
  hold_constants();
  backend_.reserve(step_limits(spec_, limits_));
}

void Decoder::hold_constants() {
  std::vector<std::span<const std::byte>> constants = weights_.memory();
  for (const std::span<const float> table : rope_.memory()) constants.push_back(std::as_bytes(table));
  backend_.hold(constants);
}

void Decoder::forward(const StepInputs& inputs) {
  LLMSRV_CHECK(static_cast<int>(inputs.tokens.size()) <= limits_.tokens);
  backend_.run_step(inputs, [this](int rows) { run_layers(rows); });
}

void Decoder::run_layers(int rows) {
  LLMSRV_CHECK(rows <= limits_.tokens);
  const HeadShape heads = spec_.heads();
  const auto eps = static_cast<float>(spec_.rms_norm_eps);
  const double scale = spec_.attention_scale.value_or(1.0 / std::sqrt(static_cast<double>(heads.head_dim)));

  const TensorView hidden = hidden_.slice_rows(0, rows);
  const TensorView qkv = qkv_.slice_rows(0, rows);
  const TensorView attended = attended_.slice_rows(0, rows);
  const TensorView gate_up = gate_up_.slice_rows(0, rows);

  backend_.embed(weights_.embed(), static_cast<float>(spec_.embedding_scale), hidden);
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
    backend_.rope_and_store_kv(qkv, heads, norms, rope_.layer(index), cache);
    backend_.paged_attention(qkv, heads, cache, attention, attended);
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
  const TensorView logits = logits_.slice_rows(0, count);
  if (rows.empty()) return logits;
  const RmsNorm norm{weights_.final_norm(), static_cast<float>(spec_.rms_norm_eps)};
  backend_.gather_rows(hidden_, rows, picked);
  backend_.linear(picked, norm, {&weights_.head(), 1}, {}, kStore, logits);
  return logits;
}

StepLimits Decoder::step_limits(const ModelSpec& spec, const DecoderLimits& limits) {
  const int query_cols = spec.heads().query_cols();
  const int hidden_rows = std::max({spec.heads().qkv_cols(), 2 * spec.intermediate_size, spec.vocab_size});
  const std::size_t values = static_cast<std::size_t>(hidden_rows) * static_cast<std::size_t>(spec.hidden_size);
  return {.tokens = std::max(limits.tokens, limits.logits_rows),
          .sequences = limits.sequences,
          .context_len = limits.context_len,
          .input_cols = std::max({spec.hidden_size, query_cols, spec.intermediate_size}),
          .shape = spec.heads(),
          .matrix_values = values,
          .result_rows = limits.logits_rows,
          .result_cols = spec.vocab_size,
          .top_logprobs = std::min(limits.top_logprobs, spec.vocab_size)};
}

KernelNeeds Decoder::kernel_needs(const ModelSpec& spec, const WeightFormats& formats, DType kv_dtype) {
  KernelNeeds needs{spec.heads(), {spec.hidden_size, spec.heads().query_cols(), spec.intermediate_size}, {}, kv_dtype};
  for (const auto& [name, format] : formats) {
    if (name != "embed" || spec.tied_embeddings) needs.formats.push_back(format);
  }
  return needs;
}

std::size_t Decoder::workspace_bytes(const ModelSpec& spec, const DecoderLimits& limits, const Backend& backend) {
  return RopeTables::bytes(spec, limits.context_len) + activations(spec, limits, backend).bytes;
}

}  // namespace llmsrv
