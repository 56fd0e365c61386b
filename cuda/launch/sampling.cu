#include "cuda/launch/sampling.h"

namespace llmsrv::cuda {
namespace {

void require_vocab(int vocab) {
  if (vocab <= kVocabMax) return;
  throw std::invalid_argument("CUDA sampling: more than " + std::to_string(kVocabMax) + " tokens");
}

}  // namespace

void sample(const SampleParams& params, Stream stream) {
  require_vocab(params.vocab);
  if (params.row_count == 0) return;
  const Grid grid{dim3(static_cast<unsigned>(params.row_count)), dim3(kSampleThreads)};
  launch(sample_kernel<kSampleThreads>, grid, stream, params);
}

void logprobs(const LogprobParams& params, Stream stream) {
  require_vocab(params.vocab);
  if (params.top_stride > kTopLogprobsMax) {
    throw std::invalid_argument("CUDA sampling: more than " + std::to_string(kTopLogprobsMax) + " alternatives");
  }
  if (params.row_count == 0) return;
  const Grid grid{dim3(static_cast<unsigned>(params.row_count)), dim3(kSampleThreads)};
  launch(logprobs_kernel<kSampleThreads>, grid, stream, params);
}

}  // namespace llmsrv::cuda
