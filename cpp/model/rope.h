// Tables of rotary position embeddings (Su et al., "RoFormer", arXiv 2104.09864), with the scalings of checkpoints.
#pragma once

#include <span>
#include <vector>

#include "cpp/model/spec.h"

namespace llmsrv {

// Angular frequency of each pair of a head in one layer: theta^(-2 i / head_dim), scaled. [head_dim / 2]
// Llama-3 scaling: long wavelengths are divided by `factor`, short ones kept, those between are blended linearly in
// original_max_position / wavelength (Meta's llama3 reference).
std::vector<double> rope_frequencies(const ModelSpec& spec, int layer);

// The tables of all layers: one, or two where the windowed layers have a base of their own.
class RopeTables {
 public:
  // Tables for positions [0, positions).
  RopeTables(const ModelSpec& spec, int positions);
  RopeTable layer(int index) const;
  // What the layers' tables lie in; each starts at its own address here.
  std::vector<std::span<const float>> memory() const;
  static std::size_t bytes(const ModelSpec& spec, int positions);

 private:
  int positions_;
  std::vector<int> table_of_layer_;
  std::size_t table_values_;  // of one of cos and sin
  std::vector<float> cos_;    // [tables, positions, head_dim / 2]
  std::vector<float> sin_;    // [tables, positions, head_dim / 2]
};

}  // namespace llmsrv
