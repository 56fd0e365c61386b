// Outputs on their way to the front end. Bounded: when nobody takes them, the engine waits instead of growing.
// Thread rule: push() and offer() by the engine thread, the rest by any thread.
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

  // Appends all of `outputs` and empties it. Waits while the outbox is full, until lift_limit().
  void push(std::vector<Output>& outputs);
  // The same if there is room; else nothing.
  void offer(std::vector<Output>& outputs);

  // Waits up to `timeout` for outputs and takes all of them. Empty means time-out or closed, never an error.
  std::vector<Output> take_all(std::chrono::milliseconds timeout);

  // From now on there is always room: the engine is about to end and must not depend on a reader.
  void lift_limit();
  // Nothing more will be pushed: take_all() returns what is there without waiting.
  void close();

 private:
  bool has_room() const { return !limited_ || pending_.size() < capacity_; }  // with mutex_ held
  void append(std::vector<Output>& outputs);                                  // likewise

  const std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable filled_;
  std::condition_variable emptied_;
  // Guarded by mutex_:
  std::vector<Output> pending_;
  bool limited_ = true;
  bool closed_ = false;
};

}  // namespace llmsrv
