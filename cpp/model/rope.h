// Tables of rotary position embeddings (Su et al., "RoFormer", arXiv 2104.09864), with the scalings of checkpoints.
#pragma once

#include <vector>

#include "cpp/model/spec.h"

namespace llmsrv {

// Angular frequency of each pair of a head: theta^(-2 i / head_dim), scaled. [head_dim / 2]
// Llama-3 scaling: long wavelengths are divided by `factor`, short ones kept, those between are blended linearly in
// original_max_position / wavelength (Meta's llama3 reference).
std::vector<double> rope_frequencies(const ModelSpec& spec);

class RopeTables {
 public:
  // Tables for positions [0, positions).
  RopeTables(const ModelSpec& spec, int positions);
  RopeTable view() const { return {cos_.data(), sin_.data(), positions_}; }
  static std::size_t bytes(const ModelSpec& spec, int positions);

 private:
  int positions_;
  std::vector<float> cos_;  // [positions, head_dim / 2]
  std::vector<float> sin_;  // [positions, head_dim / 2]
};

}  // namespace llmsrv
