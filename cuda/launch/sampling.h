// Launch of sampling. Returns at once; errors of the launch throw. No rows: no launch.
#pragma once

#include "cuda/kernels/sampling.cuh"

namespace llmsrv::cuda {

// Throws std::invalid_argument for more than 2^24 tokens.
void sample(const SampleParams& params, Stream stream);

}  // namespace llmsrv::cuda
