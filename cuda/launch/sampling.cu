#include "cuda/launch/sampling.h"

namespace llmsrv::cuda {

void sample(const SampleParams& params, Stream stream) {
  if (params.vocab > 1 << kIdBits) throw std::invalid_argument("CUDA sampling: more than 2^24 tokens");
  if (params.row_count == 0) return;
  const Grid grid{dim3(static_cast<unsigned>(params.row_count)), dim3(kSampleThreads)};
  launch(sample_kernel<kSampleThreads>, grid, stream, params);
}

}  // namespace llmsrv::cuda
