#include "cuda/library/communicator.h"

#include <thread>

namespace llmsrv::cuda {
namespace {

constexpr std::chrono::microseconds kPause(50);

int type_of(Communicator::Element element) {
  return element == Communicator::Element::kFloat32 ? nccl::kFloat32 : nccl::kBfloat16;
}

}  // namespace

nccl::Id Communicator::make_id(const nccl::Functions& functions) {
  nccl::Id id{};
  const nccl::Result result = functions.make_id(&id);
  if (result == nccl::kSuccess) return id;
  throw CommunicatorError(CommunicatorError::Reason::kFailed, std::string("NCCL: no id: ") + functions.text(result));
}

Communicator::Communicator(const nccl::Functions& functions, const nccl::Id& id, const Options& options)
    : functions_(functions), options_(options) {
  nccl::Config config;
  settle(functions_.create(&handle_, options.ranks, id, options.rank, &config), "the ranks' meeting");
}

// destroy() would wait for the other ranks without an end; after finalize() it waits for nobody.
Communicator::~Communicator() {
  if (handle_ == nullptr) return;
  try {
    settle(functions_.finalize(handle_), "the end");
    functions_.destroy(handle_);
  } catch (const CommunicatorError&) {
    // Aborted: there is nobody left to tell.
  }
}

void Communicator::all_reduce(void* values, std::size_t count, Element element, cudaStream_t stream) {
  require_handle();
  settle(functions_.all_reduce(values, values, count, type_of(element), nccl::kSum, handle_, stream), "all_reduce");
}

void Communicator::all_gather(const void* in, void* out, std::size_t count, Element element, cudaStream_t stream) {
  require_handle();
  settle(functions_.all_gather(in, out, count, type_of(element), handle_, stream), "all_gather");
}

void Communicator::wait(const std::function<bool()>& done) {
  require_handle();
  const Clock::time_point end = deadline();
  while (!done()) {
    const nccl::Result result = state();
    if (result != nccl::kSuccess && result != nccl::kInProgress) fail(result, "a stream");
    if (Clock::now() >= end) fail(nccl::kInProgress, "a stream");
    std::this_thread::sleep_for(kPause);
  }
}

nccl::Result Communicator::state() const {
  nccl::Result result = nccl::kSuccess;
  const nccl::Result asked = functions_.state(handle_, &result);
  return asked == nccl::kSuccess ? result : asked;
}

void Communicator::settle(nccl::Result result, const char* what) {
  const Clock::time_point end = deadline();
  while (result == nccl::kInProgress && Clock::now() < end) {
    std::this_thread::sleep_for(kPause);
    result = state();
  }
  if (result != nccl::kSuccess) fail(result, what);
}

void Communicator::require_handle() const {
  if (handle_ != nullptr) return;
  throw CommunicatorError(CommunicatorError::Reason::kFailed, "NCCL: this communicator was given up after an error");
}

void Communicator::fail(nccl::Result result, const char* what) {
  if (handle_ != nullptr) functions_.abort(handle_);
  handle_ = nullptr;
  const std::string begin = std::string("NCCL: ") + what + ": ";
  if (result == nccl::kInProgress) {
    throw CommunicatorError(CommunicatorError::Reason::kTimedOut,
                            begin + "no end within " + std::to_string(options_.wait_ms_max) + " ms");
  }
  throw CommunicatorError(
      result == nccl::kRemoteError ? CommunicatorError::Reason::kRemote : CommunicatorError::Reason::kFailed,
      begin + functions_.text(result));
}

}  // namespace llmsrv::cuda
