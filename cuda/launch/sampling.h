// Launches of sampling. Each returns at once; errors of the launch throw. No rows: no launch.
#pragma once

#include "cuda/kernels/logprobs.cuh"
#include "cuda/kernels/sampling.cuh"

namespace llmsrv::cuda {

// Throws std::invalid_argument for more than kVocabMax tokens.
void sample(const SampleParams& params, Stream stream);

// Throws std::invalid_argument for more than kVocabMax tokens, or room for more than kTopLogprobsMax alternatives.
void logprobs(const LogprobParams& params, Stream stream);

}  // namespace llmsrv::cuda
