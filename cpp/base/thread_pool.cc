#include "cpp/base/thread_pool.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>

#include "cpp/base/check.h"
#include "cpp/base/processors.h"

namespace llmsrv {
namespace {

// Operations of one step follow each other within a few microseconds: spinning that long saves two system calls per
// operation. An idle process stops spinning after kSpin and uses no CPU. After kOwnSpin a thread that still waits
// offers its processor in between: the one that it waits for may stand behind it in the queue.
constexpr std::chrono::microseconds kOwnSpin{2};
constexpr std::chrono::microseconds kSpin{50};

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns once `value` differs from `old`: spins first, then sleeps in the kernel.
void wait_for_change(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
  const auto start = std::chrono::steady_clock::now();
  for (auto waited = start - start; waited < kSpin; waited = std::chrono::steady_clock::now() - start) {
    for (int i = 0; i < 32; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      cpu_relax();
    }
    if (waited > kOwnSpin) sched_yield();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

}  // namespace

// Each atomic has a cache line of its own: workers poll `epoch` while others count down `unfinished`.
struct ThreadPool::State {
  alignas(64) std::atomic<std::uint32_t> epoch{0};       // a new value is an order to work (or to stop); wraps around
  alignas(64) std::atomic<std::uint32_t> unfinished{0};  // workers that have not finished the current order
  alignas(64) const TeamFunction* work = nullptr;        // written before, read after `epoch` changes; null is "stop"
  std::vector<std::thread> workers;

  void work_until_stopped(int member) {
    for (std::uint32_t seen = 0;; ++seen) {
      wait_for_change(epoch, seen);
      if (work == nullptr) return;
      (*work)(member);
      if (unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished.notify_one();
    }
  }

  void order(const TeamFunction* next) {
    work = next;
    epoch.fetch_add(1, std::memory_order_release);
    epoch.notify_all();
  }

  void stop() {
    order(nullptr);
    for (std::thread& worker : workers) worker.join();
  }
};

ThreadPool::ThreadPool(int threads, std::vector<int> processors)
    : threads_(threads), processors_(std::move(processors)), state_(std::make_unique<State>()) {
  LLMSRV_CHECK(threads >= 1);
  LLMSRV_CHECK(processors_.empty() || processors_.size() == static_cast<std::size_t>(threads));
  try {
    for (int member = 1; member < threads; ++member) {
      state_->workers.emplace_back([state = state_.get(), member] { state->work_until_stopped(member); });
    }
  } catch (...) {  // the system has no more threads: those that run must end before their handles go
    state_->stop();
    throw;
  }
  // What the system does for a new thread, allocations included, is over before the first operation.
  run([this](int member) {
    if (member > 0) pin(member);
  });
}

ThreadPool::~ThreadPool() { state_->stop(); }

void ThreadPool::pin(int member) const {
  if (!processors_.empty()) run_on(processors_[static_cast<std::size_t>(member)]);
}

void ThreadPool::run(TeamFunction work) {
  if (threads_ == 1) return work(0);
  state_->unfinished.store(static_cast<std::uint32_t>(threads_ - 1), std::memory_order_relaxed);
  state_->order(&work);
  work(0);
  for (std::uint32_t left; (left = state_->unfinished.load(std::memory_order_acquire)) != 0;) {
    wait_for_change(state_->unfinished, left);
  }
}

}  // namespace llmsrv
