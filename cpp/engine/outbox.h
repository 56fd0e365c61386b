// Outputs on their way to the front end. Bounded: when nobody takes them, the engine waits instead of growing.
// Thread rule: push() by the engine thread, take_all() by one pump thread, close() by any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "cpp/engine/output.h"

namespace llmsrv {

class Outbox {
 public:
  // REQUIRES: capacity >= 1
  explicit Outbox(std::size_t capacity) : capacity_(capacity) {}

  // Appends all of `outputs` and empties it. Waits while the outbox is full and not closed.
  void push(std::vector<Output>& outputs);

  // Waits up to `timeout` for outputs and takes all of them. Empty means time-out or closed, never an error.
  std::vector<Output> take_all(std::chrono::milliseconds timeout);

  // From now on nothing waits: push() always appends, take_all() returns what is there.
  void close();

 private:
  const std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable filled_;
  std::condition_variable emptied_;
  // Guarded by mutex_:
  std::vector<Output> pending_;
  bool closed_ = false;
};

}  // namespace llmsrv
