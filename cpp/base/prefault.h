// Takes the pages of anonymous memory from the system ahead of need, in a thread of its own, while others use that
// memory already: no byte of it changes. Thread rule: one owner; the memory may be read and written by anyone
// meanwhile.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <thread>
#include <vector>

namespace llmsrv {

class Prefault {
 public:
  // Starts. REQUIRES: each range is whole AlignedBuffers, which outlive this
  explicit Prefault(std::vector<std::span<std::byte>> ranges);
  // Stops within a few milliseconds, done or not.
  ~Prefault();
  Prefault(const Prefault&) = delete;
  Prefault& operator=(const Prefault&) = delete;

 private:
  void run();

  const std::vector<std::span<std::byte>> ranges_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace llmsrv
