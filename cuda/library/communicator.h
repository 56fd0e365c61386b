// What the devices of one model say to each other, by NCCL: sums and gathered rows. One object per rank.
//
// Owns its communicator. Never hangs: the library is told not to block, and whatever is not done within wait_ms_max, or
// fails, is an error that says which. After an error the communicator is aborted, which also ends what waits on its
// stream, and every later call fails at once.
//
// An element of all_reduce() has the same bits at every rank. With more than two ranks the order of its sum depends on
// where in the buffer it lies, and so on how many rows there are: promise P3 then takes all_gather() and a sum of our
// own.
//
// Thread rule: one caller at a time. All calls wait for the other ranks, so ranks of one process have a thread each.
// The thread's device is the rank's.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "cuda/library/nccl.h"

namespace llmsrv::cuda {

// A collective failed; what() is one sentence for people.
struct CommunicatorError : std::runtime_error {
  enum class Reason {
    kTimedOut,  // another rank did not come
    kRemote,    // another rank failed, or the way to it
    kFailed,    // the library or the device refused
  };
  CommunicatorError(Reason reason, const std::string& what) : std::runtime_error(what), reason(reason) {}
  const Reason reason;
};

class Communicator {
 public:
  enum class Element { kFloat32, kBfloat16 };
  struct Options {
    int ranks = 1;
    int rank = 0;
    std::int64_t wait_ms_max = 60000;  // of each call
  };

  // For one rank to make and for all of them to have. Throws CommunicatorError.
  static nccl::Id make_id(const nccl::Functions& functions);

  // Waits for all ranks. Throws CommunicatorError.
  Communicator(const nccl::Functions& functions, const nccl::Id& id, const Options& options);
  // Waits for all ranks to do the same.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // values[i] of every rank = the sum of all ranks' values[i]. All ranks make the same calls in the same order. Throws
  // CommunicatorError; without one, the work is on the stream.
  void all_reduce(void* values, std::size_t count, Element element, cudaStream_t stream);
  // out of every rank = `count` elements of each rank's `in`, in the order of ranks. Else as above.
  void all_gather(const void* in, void* out, std::size_t count, Element element, cudaStream_t stream);

  // Returns when `done` says that what was put on the stream is done. Throws CommunicatorError: a rank that has gone
  // leaves the others' streams waiting, so a stream with collectives is waited for in this way alone.
  void wait(const std::function<bool()>& done);

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point deadline() const { return Clock::now() + std::chrono::milliseconds(options_.wait_ms_max); }
  nccl::Result state() const;
  // REQUIRES: the call of the name `what` has returned `result`
  void settle(nccl::Result result, const char* what);
  void require_handle() const;
  [[noreturn]] void fail(nccl::Result result, const char* what);

  const nccl::Functions functions_;
  const Options options_;
  nccl::Handle handle_ = nullptr;  // null once aborted
};

}  // namespace llmsrv::cuda
