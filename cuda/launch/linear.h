// Launches of linear layers. Each returns at once; errors of the launch throw. No tokens: no launch.
#pragma once

#include "cuda/kernels/packed_linear.cuh"

namespace llmsrv::cuda {

// Out is Bf16, or float for logits. Throws std::invalid_argument when cols is no multiple of 32.
template <typename Out>
void packed_linear(const PackedLinearParams<Out>& params, PackedFormat format, Stream stream);

}  // namespace llmsrv::cuda
