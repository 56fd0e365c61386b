#include "cuda/plugin/draws.h"

#include <cstddef>

#include "cuda/plugin/arguments.h"

namespace llmsrv::cuda {
namespace {

// The table's rows are the kernels'.
static_assert(sizeof(device::SampleRow) == sizeof(SampleRowOnDevice));
static_assert(offsetof(device::SampleRow, changes) ==
              offsetof(SampleRowOnDevice, penalties) + offsetof(RowPenalties, any));
static_assert(sizeof(device::LogprobRow) == sizeof(LogprobRowOnDevice));

}  // namespace

void run(const device::Sample& launch, Stream stream) {
  SampleParams params;
  params.logits = pointer<float>(launch.logits);
  params.logits_stride = launch.logits.stride;
  params.rows = reinterpret_cast<const SampleRowOnDevice*>(launch.rows);
  params.words = launch.words;
  params.drawn = launch.drawn;
  params.weights = launch.weights;
  params.tokens = launch.tokens;
  params.finite = launch.finite;
  params.row_count = launch.logits.rows;
  params.vocab = launch.logits.cols;
  sample(params, stream);
}

void run(const device::Logprobs& launch, Stream stream) {
  LogprobParams params;
  params.logits = pointer<float>(launch.logits);
  params.logits_stride = launch.logits.stride;
  params.rows = reinterpret_cast<const LogprobRowOnDevice*>(launch.rows);
  params.tokens = launch.tokens;
  params.logprobs = launch.logprobs;
  params.ranks = launch.ranks;
  params.top_tokens = launch.top_tokens;
  params.top_logprobs = launch.top_logprobs;
  params.top_stride = launch.top_stride;
  params.row_count = launch.row_count;
  params.vocab = launch.logits.cols;
  logprobs(params, stream);
}

}  // namespace llmsrv::cuda
