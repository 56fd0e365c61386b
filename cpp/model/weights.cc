#include "cpp/model/weights.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

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

std::string layer_prefix(int index) { return "layers." + std::to_string(index) + "."; }

std::array<MatrixStack::Rows, 3> qkv_rows(const ModelSpec& spec, const WeightFormats& formats,
                                          const std::string& prefix) {
  const HeadShape heads = spec.heads();
  return {{{heads.query_cols(), formats.at(prefix + "q")},
           {heads.kv_cols(), formats.at(prefix + "k")},
           {heads.kv_cols(), formats.at(prefix + "v")}}};
}

std::array<MatrixStack::Rows, 2> gate_up_rows(const ModelSpec& spec, const WeightFormats& formats,
                                              const std::string& prefix) {
  return {{{spec.intermediate_size, formats.at(prefix + "gate")}, {spec.intermediate_size, formats.at(prefix + "up")}}};
}

}  // namespace

Weights::Weights(const ModelSpec& spec, WeightFormats formats, int threads)
    : spec_(checked(spec)),
      formats_(std::move(formats)),
      pool_(threads),
      layers_(static_cast<std::size_t>(spec.num_layers)) {
  const auto hidden = static_cast<std::size_t>(spec_.hidden_size);
  const HeadShape heads = spec_.heads();
  const auto matrix = [&](const std::string& name, int rows, int cols) {
    return PackedMatrix(formats_.at(name), rows, cols);
  };
  embed_ = matrix("embed", spec_.vocab_size, spec_.hidden_size);
  for (int index = 0; index < spec_.num_layers; ++index) {
    LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
    const std::string prefix = layer_prefix(index);
    layer.attn_norm.resize(hidden);
    layer.qkv = MatrixStack(qkv_rows(spec_, formats_, prefix), spec_.hidden_size);
    if (spec_.qkv_bias) layer.qkv_bias.resize(static_cast<std::size_t>(heads.qkv_cols()));
    if (spec_.head_norms) {
      layer.q_norm.resize(static_cast<std::size_t>(heads.head_dim));
      layer.k_norm.resize(static_cast<std::size_t>(heads.head_dim));
    }
    if (spec_.post_norms) {
      layer.attn_post_norm.resize(hidden);
      layer.ffn_post_norm.resize(hidden);
    }
    layer.o = matrix(prefix + "o", spec_.hidden_size, heads.query_cols());
    layer.ffn_norm.resize(hidden);
    layer.gate_up = MatrixStack(gate_up_rows(spec_, formats_, prefix), spec_.hidden_size);
    layer.down = matrix(prefix + "down", spec_.hidden_size, spec_.intermediate_size);
  }
  final_norm_.resize(hidden);
  if (!spec_.tied_embeddings) lm_head_ = matrix("lm_head", spec_.vocab_size, spec_.hidden_size);
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
  const auto bind_rows = [&](const std::string& name, MatrixStack& stack, int first) {
    const MatrixStack::Place place = stack.place_of(first);
    bind_matrix(name, *place.matrix, place.row);
  };
  const auto bind_vector = [&](const std::string& name, std::vector<float>& vector, int first) {
    destinations_.at(name).vector = &vector;
    destinations_.at(name).first = first;
  };
  bind_matrix("embed", embed_, 0);
  for (int index = 0; index < spec_.num_layers; ++index) {
    LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
    const std::string prefix = layer_prefix(index);
    bind_vector(prefix + "attn_norm", layer.attn_norm, 0);
    bind_rows(prefix + "q", layer.qkv, 0);
    bind_rows(prefix + "k", layer.qkv, query_cols);
    bind_rows(prefix + "v", layer.qkv, query_cols + kv_cols);
    if (spec_.qkv_bias) {
      bind_vector(prefix + "q_bias", layer.qkv_bias, 0);
      bind_vector(prefix + "k_bias", layer.qkv_bias, query_cols);
      bind_vector(prefix + "v_bias", layer.qkv_bias, query_cols + kv_cols);
    }
    if (spec_.head_norms) {
      bind_vector(prefix + "q_norm", layer.q_norm, 0);
      bind_vector(prefix + "k_norm", layer.k_norm, 0);
    }
    bind_matrix(prefix + "o", layer.o, 0);
    bind_vector(prefix + "ffn_norm", layer.ffn_norm, 0);
    bind_rows(prefix + "gate", layer.gate_up, 0);
    bind_rows(prefix + "up", layer.gate_up, spec_.intermediate_size);
    bind_matrix(prefix + "down", layer.down, 0);
    if (spec_.post_norms) {
      bind_vector(prefix + "attn_post_norm", layer.attn_post_norm, 0);
      bind_vector(prefix + "ffn_post_norm", layer.ffn_post_norm, 0);
    }
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
  if (destination.matrix != nullptr && !PackedMatrix::accepts(destination.matrix->format(), source_format)) {
    refuse("is " + std::string(source_format_name(source_format)) + ", but memory was taken for " +
           std::string(weight_format_name(destination.matrix->format())));
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

std::vector<Weights::Piece> Weights::pieces() {
  std::vector<Piece> pieces;
  std::set<const void*> seen;
  for (const auto& [name, destination] : destinations_) {
    const void* holder = destination.matrix != nullptr ? static_cast<const void*>(destination.matrix)
                                                       : static_cast<const void*>(destination.vector);
    if (seen.insert(holder).second) pieces.push_back({name, destination.matrix, destination.vector});
  }
  return pieces;
}

std::vector<std::span<const std::byte>> Weights::memory() const {
  std::vector<std::span<const std::byte>> memory;
  const auto add = [&](std::span<const std::byte> bytes) {
    if (!bytes.empty()) memory.push_back(bytes);
  };
  const auto add_vector = [&](const std::vector<float>& vector) { add(std::as_bytes(std::span(vector))); };
  add(embed_.data());
  for (const LayerWeights& layer : layers_) {
    for (const std::vector<float>* vector : {&layer.attn_norm, &layer.qkv_bias, &layer.q_norm, &layer.k_norm,
                                             &layer.attn_post_norm, &layer.ffn_norm, &layer.ffn_post_norm}) {
      add_vector(*vector);
    }
    for (const PackedMatrix& part : layer.qkv.parts()) add(part.data());
    add(layer.o.data());
    for (const PackedMatrix& part : layer.gate_up.parts()) add(part.data());
    add(layer.down.data());
  }
  add_vector(final_norm_);
  add(lm_head_.data());
  return memory;
}

std::size_t Weights::weights_bytes(const ModelSpec& spec, const WeightFormats& formats) {
  const HeadShape heads = spec.heads();
  const auto matrix = [&](const std::string& name, int rows, int cols) {
    return PackedMatrix::packed_bytes(formats.at(name), rows, cols);
  };
  const auto vector = [](int size) { return static_cast<std::size_t>(size) * sizeof(float); };
  std::size_t bytes = matrix("embed", spec.vocab_size, spec.hidden_size) + vector(spec.hidden_size);
  for (int index = 0; index < spec.num_layers; ++index) {
    const std::string prefix = layer_prefix(index);
    bytes += (spec.post_norms ? 4 : 2) * vector(spec.hidden_size) + (spec.qkv_bias ? vector(heads.qkv_cols()) : 0);
    bytes += spec.head_norms ? 2 * vector(spec.head_dim) : 0;
    bytes += MatrixStack::packed_bytes(qkv_rows(spec, formats, prefix), spec.hidden_size);
    bytes += matrix(prefix + "o", spec.hidden_size, heads.query_cols());
    bytes += MatrixStack::packed_bytes(gate_up_rows(spec, formats, prefix), spec.hidden_size);
    bytes += matrix(prefix + "down", spec.hidden_size, spec.intermediate_size);
  }
  return bytes + (spec.tied_embeddings ? 0 : matrix("lm_head", spec.vocab_size, spec.hidden_size));
}

}  // namespace llmsrv
