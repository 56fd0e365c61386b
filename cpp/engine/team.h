// The compute threads of the engines of a process, and whose turn it is to use them. Engines that share a team compute
// one after the other, a step each, in the order in which they asked: none of them waits for ever, and each has all
// threads, so that what it computes never depends on the others (promise P3).
// Thread rule: any thread may take a turn; pool() is used by the one whose turn it is.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "cpp/base/thread_pool.h"

namespace llmsrv {

class Team {
 public:
  // As for ThreadPool. Its owner is whoever has the turn.
  explicit Team(int threads, std::vector<int> processors = {});

  // Waits for the turn, and has it until release() or the end of its life. One who waits sleeps.
  class Turn {
   public:
    explicit Turn(Team& team);
    ~Turn() { release(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    // Gives the turn to the next. Idempotent.
    void release();

   private:
    Team* team_;  // null once it is over
  };

  ThreadPool& pool() { return pool_; }
  // How many have the turn or wait for it, now.
  std::uint32_t asking() const {
    const std::uint32_t served = served_ticket_;  // first: it never passes the other one
    return next_ticket_ - served;
  }

 private:
  ThreadPool pool_;
  std::atomic<std::uint32_t> next_ticket_{0};  // both wrap around
  std::atomic<std::uint32_t> served_ticket_{0};
};

}  // namespace llmsrv
