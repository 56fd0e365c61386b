// All weights of a model in the layout of the kernels.
// Thread rule: set() by one thread at a time while loading; read only afterwards.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cpp/base/thread_pool.h"
#include "cpp/model/spec.h"
#include "cpp/model/weight_formats.h"
#include "cpp/quant/matrix_stack.h"
#include "cpp/quant/packed_matrix.h"

namespace llmsrv {

struct LayerWeights {
  std::vector<float> attn_norm;  // [hidden]
  MatrixStack qkv;               // [(heads + 2 kv_heads) * head_dim, hidden]: q, k, v stacked
  std::vector<float> qkv_bias;   // one per row of qkv, or empty
  std::vector<float> q_norm;     // [head_dim], or empty, as the next
  std::vector<float> k_norm;
  PackedMatrix o;                     // [hidden, heads * head_dim]
  std::vector<float> attn_post_norm;  // [hidden], or empty
  std::vector<float> ffn_norm;        // [hidden]
  MatrixStack gate_up;                // [2 * intermediate, hidden]: gate, up stacked
  PackedMatrix down;                  // [hidden, intermediate]
  std::vector<float> ffn_post_norm;   // [hidden], or empty
};

class Weights {
 public:
  // Takes the memory for all weights. Throws std::invalid_argument for an impossible spec.
  // REQUIRES: `formats` comes from choose_weight_formats() for this spec; threads >= 1
  Weights(const ModelSpec& spec, WeightFormats formats, int threads);

  // Stores one weight by our name. Throws std::invalid_argument for an unknown name, a wrong shape, a wrong number of
  // bytes, a name that was set before, or a format other than the one that the matrix was to hold as it is.
  void set(const std::string& name, SourceFormat source_format, std::span<const int> shape,
           std::span<const std::byte> data);

  // Names that were not set yet.
  std::vector<std::string> missing() const;

  // What holds the weights: each matrix and each vector once, in the order of their first names. For packed_file.h,
  // which fills them all and then says so by all_set().
  struct Piece {
    std::string name;  // of its first weight
    PackedMatrix* matrix = nullptr;
    std::vector<float>* vector = nullptr;  // exactly one of the two is set
  };
  std::vector<Piece> pieces();
  void all_set() { missing_.clear(); }

  const ModelSpec& spec() const { return spec_; }
  const WeightFormats& formats() const { return formats_; }
  const PackedMatrix& embed() const { return embed_; }                                    // [vocab, hidden]
  const PackedMatrix& head() const { return spec_.tied_embeddings ? embed_ : lm_head_; }  // [vocab, hidden]
  const LayerWeights& layer(int index) const { return layers_[static_cast<std::size_t>(index)]; }
  std::span<const float> final_norm() const { return final_norm_; }  // [hidden]
  std::size_t bytes() const { return weights_bytes(spec_, formats_); }
  // All matrices and vectors, each at the address by which operations are given it.
  std::vector<std::span<const std::byte>> memory() const;

  // Bytes that the weights of such a model take, by arithmetic.
  static std::size_t weights_bytes(const ModelSpec& spec, const WeightFormats& formats);

 private:
  // Where a named weight goes: rows of a matrix, or a part of a vector. Exactly one pointer is set.
  struct Destination {
    std::vector<int> shape;
    PackedMatrix* matrix = nullptr;
    std::vector<float>* vector = nullptr;
    int first = 0;
  };
  void bind_destinations();

  ModelSpec spec_;
  WeightFormats formats_;
  ThreadPool pool_;
  PackedMatrix embed_;
  std::vector<LayerWeights> layers_;
  std::vector<float> final_norm_;
  PackedMatrix lm_head_;
  std::map<std::string, Destination> destinations_;
  std::set<std::string> missing_;
};

}  // namespace llmsrv
