// Runs CUDA kernels as ordinary C++20 on the CPU: functional tests on machines without a GPU.
//
// Every thread of a block is a fiber. The fibers of a block share one OS thread and are never preempted; blocks run one
// after another. include/cuda_runtime.h gives the emulator CUDA's names; kernels include that and nothing from here.
//
// What it shows: results under several thread orders, deadlocks, divergent barriers, wrong masks, misaligned or late
// copies, reads of what was never written (shared memory starts as NaN) and, in the build with the race checker, two
// accesses without a barrier between them. What it cannot show: speed, occupancy, bank conflicts, registers, the memory
// order between blocks, and whether the wrappers around single instructions are right.
//
// Thread rule: launches, options and counters belong to one OS thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <source_location>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "cuda/emulation/vector_types.h"

namespace llmsrv::emulation {

using Location = std::source_location;

// What a running CUDA thread can see of itself.
struct Thread {
  uint3 index{};
  unsigned linear = 0;
  unsigned lane = 0;
  unsigned warp = 0;
};

struct Context {
  dim3 grid;
  dim3 block;
  uint3 block_index{};
  Thread* current = nullptr;
  unsigned char* shared = nullptr;  // dynamic shared memory
  std::size_t shared_bytes = 0;
};
extern thread_local constinit Context* context;

// A barrier or a wait in a kernel's source.
struct Site {
  std::string file;  // without folders
  unsigned line = 0;
  auto operator<=>(const Site&) const = default;
};

// Which of the ready threads runs next. Copies land as late as they may under kForward, at once under kReverse.
enum class Order { kForward, kReverse, kShuffled };

struct Options {
  Order order = Order::kForward;
  std::uint64_t seed = 1;
  bool products_sum_backwards = false;  // those of hopper.h, unlike all others: a device on which they disagree
  Site left_out;  // passes this barrier or wait by, to see whether the tests notice; none when the line is 0
  std::size_t stack_bytes = 256 << 10;
  std::size_t shared_bytes_max = 227 << 10;
};
Options& options();

// All barriers and waits that were reached since the set was last cleared.
std::set<Site>& reached_sites();

// A kernel did what CUDA forbids, or would hang.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
[[noreturn]] void fail(const std::string& what, const Location& location);

// What one lane leaves for the others of its warp.
struct alignas(16) Slot {
  unsigned char bytes[64];
};
enum class Collective : std::uint8_t { kNone, kShuffle, kVote, kSyncWarp, kLoadMatrix, kMatrixMultiply };

// Leaves this lane's bytes and waits for every live lane of `mask`. The 32 slots stay valid until this lane's next
// collective; `arrived` are the lanes whose slots hold something.
const Slot* exchange(unsigned mask, Collective kind, const void* value, std::size_t bytes, unsigned* arrived,
                     const Location& location);
void block_barrier(const Location& location);
void warp_barrier(unsigned mask, const Location& location);

// Static shared memory: one per block and key. Freed when the block ends.
void* static_shared(const void* key, std::size_t bytes, std::size_t alignment);

// A 16-byte asynchronous copy into shared memory; without `wanted` it writes zeros and reads nothing.
void copy_async(void* to, const void* from, std::size_t bytes, bool wanted, const Location& location);
void commit_copies();
void wait_for_copies(unsigned groups_left, const Location& location);

// What copies and multiplications beside the threads are made of (hopper.h).
// True when this barrier or wait is to be passed by.
bool left_out(const Location& location);
// Whether what may happen at any time from now on happens at once.
bool happens_now();
std::uint64_t random_number();
// Waits until somebody wakes those that wait for `event`.
void wait_for_event(const void* event, const Location& location);
void wake(const void* event);

// One kernel launch; returns when all blocks have run. Throws Error.
struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
};
void run(const LaunchShape& shape, void (*body)(void*), void* data);

template <typename... P, typename... A>
void launch(void (*kernel)(P...), const LaunchShape& shape, A&&... arguments) {
  struct Call {
    void (*kernel)(P...);
    std::tuple<P...> arguments;
  } call{kernel, {std::forward<A>(arguments)...}};
  run(
      shape,
      [](void* data) {
        auto* call = static_cast<Call*>(data);
        std::apply(call->kernel, call->arguments);
      },
      &call);
}

}  // namespace llmsrv::emulation
