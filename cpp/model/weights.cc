#include "cpp/model/weights.h"

#include <algorithm>
#include <stdexcept>

namespace llmsrv {
namespace {

std::string shape_text(std::span<const int> shape) {
  std::string text = "[";
  for (const int size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

const ModelSpec& checked(const ModelSpec& spec) {
  check_spec(spec);
  return spec;
}

}  // namespace

Weights::Weights(const ModelSpec& spec, WeightFormat format, int threads)
    : spec_(checked(spec)), format_(format), pool_(threads), layers_(static_cast<std::size_t>(spec.num_layers)) {
  const auto hidden = static_cast<std::size_t>(spec_.hidden_size);
  const HeadShape heads = spec_.heads();
  embed_ = PackedMatrix(format_, spec_.vocab_size, spec_.hidden_size);
  for (LayerWeights& layer : layers_) {
    layer.attn_norm.resize(hidden);
    layer.qkv = PackedMatrix(format_, heads.qkv_cols(), spec_.hidden_size);
    if (spec_.qkv_bias) layer.qkv_bias.resize(static_cast<std::size_t>(heads.qkv_cols()));
    layer.o = PackedMatrix(format_, spec_.hidden_size, heads.query_cols());
    layer.ffn_norm.resize(hidden);
    layer.gate_up = PackedMatrix(format_, 2 * spec_.intermediate_size, spec_.hidden_size);
    layer.down = PackedMatrix(format_, spec_.hidden_size, spec_.intermediate_size);
  }
  final_norm_.resize(hidden);
  if (!spec_.tied_embeddings) lm_head_ = PackedMatrix(format_, spec_.vocab_size, spec_.hidden_size);
  bind_destinations();
}

void Weights::bind_destinations() {
  const int query_cols = spec_.heads().query_cols();
  const int kv_cols = spec_.heads().kv_cols();
  for (WeightInfo& info : expected_weights(spec_)) {
    missing_.insert(info.name);
    destinations_[info.name].shape = std::move(info.shape);
  }
  const auto bind_matrix = [&](const std::string& name, PackedMatrix& matrix, int first) {
    destinations_.at(name).matrix = &matrix;
    destinations_.at(name).first = first;
  };
  const auto bind_vector = [&](const std::string& name, std::vector<float>& vector, int first) {
    destinations_.at(name).vector = &vector;
    destinations_.at(name).first = first;
  };
  bind_matrix("embed", embed_, 0);
  for (int index = 0; index < spec_.num_layers; ++index) {
    LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
    const std::string prefix = "layers." + std::to_string(index) + ".";
    bind_vector(prefix + "attn_norm", layer.attn_norm, 0);
    bind_matrix(prefix + "q", layer.qkv, 0);
    bind_matrix(prefix + "k", layer.qkv, query_cols);
    bind_matrix(prefix + "v", layer.qkv, query_cols + kv_cols);
    if (spec_.qkv_bias) {
      bind_vector(prefix + "q_bias", layer.qkv_bias, 0);
      bind_vector(prefix + "k_bias", layer.qkv_bias, query_cols);
      bind_vector(prefix + "v_bias", layer.qkv_bias, query_cols + kv_cols);
    }
    bind_matrix(prefix + "o", layer.o, 0);
    bind_vector(prefix + "ffn_norm", layer.ffn_norm, 0);
    bind_matrix(prefix + "gate", layer.gate_up, 0);
    bind_matrix(prefix + "up", layer.gate_up, spec_.intermediate_size);
    bind_matrix(prefix + "down", layer.down, 0);
  }
  bind_vector("final_norm", final_norm_, 0);
  if (!spec_.tied_embeddings) bind_matrix("lm_head", lm_head_, 0);
}

void Weights::set(const std::string& name, SourceFormat source_format, std::span<const int> shape,
                  std::span<const std::byte> data) {
  const auto found = destinations_.find(name);
  if (found == destinations_.end()) throw std::invalid_argument("unknown weight '" + name + "'");
  const Destination& destination = found->second;
  const auto refuse = [&](const std::string& problem) {
    throw std::invalid_argument("weight '" + name + "': " + problem);
  };
  if (missing_.count(name) == 0) refuse("was set before");
  if (!std::equal(shape.begin(), shape.end(), destination.shape.begin(), destination.shape.end())) {
    refuse("shape is " + shape_text(shape) + ", expected " + shape_text(destination.shape));
  }
  const int rows = destination.matrix != nullptr ? shape[0] : 1;
  const int cols = shape.back();
  if (cols % source_block_values(source_format) != 0) refuse("row length is no multiple of the format's block");
  const std::size_t expected_bytes = source_row_bytes(source_format, cols) * static_cast<std::size_t>(rows);
  if (data.size() != expected_bytes) {
    refuse("has " + std::to_string(data.size()) + " bytes, expected " + std::to_string(expected_bytes));
  }
  if (destination.matrix != nullptr) {
    destination.matrix->set_rows(destination.first, rows, source_format, data, pool_);
  } else {
    unpack_row(source_format, data.data(), cols, destination.vector->data() + destination.first);
  }
  missing_.erase(name);
}

std::vector<std::string> Weights::missing() const { return {missing_.begin(), missing_.end()}; }

std::size_t Weights::weights_bytes(const ModelSpec& spec, WeightFormat format) {
  const HeadShape heads = spec.heads();
  const auto matrix = [&](int rows, int cols) { return PackedMatrix::packed_bytes(format, rows, cols); };
  const auto vector = [](int size) { return static_cast<std::size_t>(size) * sizeof(float); };
  const std::size_t layer =
      2 * vector(spec.hidden_size) + matrix(heads.qkv_cols(), spec.hidden_size) +
      (spec.qkv_bias ? vector(heads.qkv_cols()) : 0) + matrix(spec.hidden_size, heads.query_cols()) +
      matrix(2 * spec.intermediate_size, spec.hidden_size) + matrix(spec.hidden_size, spec.intermediate_size);
  const std::size_t table = matrix(spec.vocab_size, spec.hidden_size);
  return static_cast<std::size_t>(spec.num_layers) * layer + vector(spec.hidden_size) +
         (spec.tied_embeddings ? table : 2 * table);
}

}  // namespace llmsrv
