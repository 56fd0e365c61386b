#include "cpp/base/thread_pool.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpp/base/check.h"

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

ThreadPool::ThreadPool(int threads) : threads_(threads), state_(std::make_unique<State>()) {
  LLMSRV_CHECK(threads >= 1);
  try {
    for (int member = 1; member < threads; ++member) {
      state_->workers.emplace_back([state = state_.get(), member] { state->work_until_stopped(member); });
    }
  } catch (...) {  // the system has no more threads: those that run must end before their handles go
    state_->stop();
    throw;
  }
  // What the system does for a new thread, allocations included, is over before the first operation.
  run([](int) {});
}

ThreadPool::~ThreadPool() { state_->stop(); }

void ThreadPool::run(TeamFunction work) {
  if (threads_ == 1) return work(0);
  state_->unfinished.store(static_cast<std::uint32_t>(threads_ - 1), std::memory_order_relaxed);
  state_->order(&work);
  work(0);
  for (std::uint32_t left; (left = state_->unfinished.load(std::memory_order_acquire)) != 0;) {
    wait_for_change(state_->unfinished, left);
  }
}

int physical_core_count() {
  const int logical = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return logical > 0 ? logical : 1;

  std::set<std::pair<int, int>> cores;  // (package, core) of every logical processor we may use
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const std::string topology = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    std::ifstream package_file(topology + "physical_package_id");
    std::ifstream core_file(topology + "core_id");
    int package = 0;
    int core = 0;
    if (!(package_file >> package) || !(core_file >> core)) return CPU_COUNT(&allowed);
    cores.emplace(package, core);
  }
  return cores.empty() ? 1 : static_cast<int>(cores.size());
}

}  // namespace llmsrv
