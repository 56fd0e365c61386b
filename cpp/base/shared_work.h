// Items that the members of a team work off together: each member goes through its own share, piece by piece, and then
// helps the others with theirs. So a member whose processor was taken away for a while keeps the team waiting for a
// piece, not for its share. Who computes an item must not matter to the result.
//
// Thread rule: one call of a ThreadPool's run() is one use. Within it each member offers once at most, then works.
// Allocates at construction only.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "cpp/base/thread_pool.h"

namespace llmsrv {

class SharedWork {
 public:
  explicit SharedWork(int members) : shares_(static_cast<std::size_t>(members)) {}

  // Offers `items` as the share of `member`, to be taken `piece` at a time. What this thread wrote before is visible to
  // whoever takes them. REQUIRES: piece >= 1; what was offered for this member before has been worked off
  void offer(int member, ThreadPool::Range items, int piece) { share(member).offer(items, piece); }

  // Calls work(owner, items) for pieces of the member's own share, then for what is left of the others' that have been
  // offered by now. All of its own share is taken when this returns, and all of it is done when the run() is.
  template <typename Work>
  void work_off(int member, const Work& work) {
    const int members = static_cast<int>(shares_.size());
    for (int i = 0; i < members; ++i) {
      const int owner = (member + i) % members;
      while (const auto piece = share(owner).take()) work(owner, *piece);
    }
  }

 private:
  // Has a cache line of its own: its owner writes to it all the time, the others hardly ever.
  class alignas(64) Share {
   public:
    void offer(ThreadPool::Range items, int piece) {
      piece_.store(piece, std::memory_order_relaxed);
      left_.store(pack(items), std::memory_order_release);
    }

    std::optional<ThreadPool::Range> take() {
      std::uint64_t left = left_.load(std::memory_order_acquire);
      while (true) {
        const ThreadPool::Range items = unpack(left);
        if (items.begin >= items.end) return std::nullopt;
        const int end = std::min(items.begin + piece_.load(std::memory_order_relaxed), items.end);
        if (left_.compare_exchange_weak(left, pack({end, items.end}), std::memory_order_acquire)) {
          return ThreadPool::Range{items.begin, end};
        }
      }
    }

   private:
    static std::uint64_t pack(ThreadPool::Range items) {
      return static_cast<std::uint64_t>(static_cast<std::uint32_t>(items.begin)) << 32 |
             static_cast<std::uint32_t>(items.end);
    }
    static ThreadPool::Range unpack(std::uint64_t word) {
      return {static_cast<int>(word >> 32), static_cast<int>(word & 0xffffffff)};
    }

    // Both ends in one word: nobody can see the beginning of one offer with the end of another.
    std::atomic<std::uint64_t> left_{0};
    std::atomic<int> piece_{1};
  };

  Share& share(int member) { return shares_[static_cast<std::size_t>(member)]; }

  std::vector<Share> shares_;
};

}  // namespace llmsrv
