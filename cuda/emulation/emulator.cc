#include "cuda/emulation/emulator.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <vector>

#include "cuda/emulation/fiber.h"
#include "cuda/emulation/hopper.h"
#include "cuda/emulation/race.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace llmsrv::emulation {

thread_local constinit Context* context = nullptr;

Options& options() {
  static Options options;
  return options;
}

std::set<Site>& reached_sites() {
  static std::set<Site> sites;
  return sites;
}

namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kThreadsMax = 1024;
constexpr unsigned char kNeverWritten = 0xff;  // NaN in every floating-point format

enum class Wait : std::uint8_t { kReady, kBlock, kCollective, kEvent, kDone };

struct Copy {
  void* to;
  const void* from;
  std::size_t bytes;
  bool wanted;
  bool done;
};

struct BlockThread : Thread {
  explicit BlockThread(std::size_t stack_bytes) : fiber(stack_bytes) {}
  Fiber fiber;
  Wait wait = Wait::kReady;
  const void* event = nullptr;  // of Wait::kEvent
  Location location;
  std::vector<Copy> open_copies;              // since the last commit
  std::deque<std::vector<Copy>> copy_groups;  // committed and not waited for
};

// The lanes of one mask that meet.
struct Meeting {
  unsigned mask = 0;
  unsigned arrived = 0;
  unsigned phase = 0;
  unsigned complete[2] = {};  // who took part, by parity of the phase
  Collective kind = Collective::kNone;
  Location location;
  Slot slots[2][kWarp];
};

struct Warp {
  unsigned ready = 0;
  unsigned live = 0;
  std::vector<std::unique_ptr<Meeting>> meetings;
};

std::string describe(const Location& location) {
  const std::string file = location.file_name();
  return file.substr(file.rfind('/') + 1) + ":" + std::to_string(location.line());
}

bool same_place(const Location& a, const Location& b) {
  return a.line() == b.line() && a.column() == b.column() && std::strcmp(a.file_name(), b.file_name()) == 0;
}

// One block's threads, and who of them may run. The stacks are kept between blocks and launches.
class Block : public Context {
 public:
  void prepare_launch(const LaunchShape& shape, void (*body)(void*), void* data);
  void run_at(uint3 index);

  BlockThread& self() { return static_cast<BlockThread&>(*current); }
  Warp& warp() { return warps_[current->warp]; }
  void run_body() { body_(data_); }
  void exit_thread();
  void keep_error() { error_ = std::current_exception(); }
  void wait(Wait wait, const Location& location);
  void arrive_at_barrier(const Location& location);
  Meeting& meeting(unsigned mask, const Location& location);
  void finish(Meeting& meeting);
  bool happens_now();
  void wake(const void* event);
  std::uint64_t random();
  void* static_shared(const void* key, std::size_t bytes, std::size_t alignment);

 private:
  void run_threads();
  bool run_warp(unsigned index);
  unsigned pick(unsigned ready);
  void release_barrier();
  void make_ready(BlockThread& thread);
  [[noreturn]] void fail_deadlocked();

  std::vector<std::unique_ptr<BlockThread>> threads_;
  std::vector<Warp> warps_;
  std::size_t stack_bytes_ = 0;
  unsigned live_ = 0;
  unsigned at_barrier_ = 0;
  Location barrier_location_;
  void (*body_)(void*) = nullptr;
  void* data_ = nullptr;
  std::exception_ptr error_;
  std::uint64_t random_state_ = 1;
  std::vector<std::pair<const void*, std::unique_ptr<void, decltype(&std::free)>>> statics_;
};

Block& block() { return static_cast<Block&>(*context); }

// Memory as a block finds it: NaN all over, and forbidden ground behind it under AddressSanitizer.
std::unique_ptr<void, decltype(&std::free)> fresh_shared(std::size_t bytes, std::size_t alignment) {
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(alignment, rounded), &std::free);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory.get(), kNeverWritten, bytes);
#if defined(__SANITIZE_ADDRESS__)
  ASAN_POISON_MEMORY_REGION(static_cast<char*>(memory.get()) + bytes, rounded - bytes);
#endif
  return memory;
}

void land(Copy& copy) {
  if (copy.done) return;
  if (copy.wanted) {
    std::memcpy(copy.to, copy.from, copy.bytes);
  } else {
    std::memset(copy.to, 0, copy.bytes);
  }
  copy.done = true;
}

void thread_body() {
  Block& block = emulation::block();
  block.self().fiber.arrived();
  try {
    block.run_body();
    block.exit_thread();
  } catch (...) {
    block.keep_error();
    block.self().wait = Wait::kDone;
  }
  block.self().fiber.leave(true);
  std::abort();
}

void Block::prepare_launch(const LaunchShape& shape, void (*body)(void*), void* data) {
  grid = shape.grid;
  Context::block = shape.block;
  body_ = body;
  data_ = data;
  random_state_ = options().seed * 0x9e3779b97f4a7c15ull + 1;
  const unsigned count = shape.block.x * shape.block.y * shape.block.z;
  if (stack_bytes_ != options().stack_bytes) threads_.clear();
  stack_bytes_ = options().stack_bytes;
  while (threads_.size() > count) threads_.pop_back();
  while (threads_.size() < count) threads_.push_back(std::make_unique<BlockThread>(stack_bytes_));
  for (unsigned i = 0; i < count; ++i) {
    BlockThread& thread = *threads_[i];
    thread.linear = i;
    thread.lane = i % kWarp;
    thread.warp = i / kWarp;
    thread.index = {i % shape.block.x, i / shape.block.x % shape.block.y, i / (shape.block.x * shape.block.y)};
  }
}

void Block::run_at(uint3 index) {
  block_index = index;
  live_ = static_cast<unsigned>(threads_.size());
  at_barrier_ = 0;
  error_ = nullptr;
  warps_.clear();
  warps_.resize((live_ + kWarp - 1) / kWarp);
  for (const auto& thread : threads_) {
    warps_[thread->warp].live |= 1u << thread->lane;
    thread->open_copies.clear();
    thread->copy_groups.clear();
    make_ready(*thread);
    thread->fiber.start(&thread_body);
  }
  statics_.clear();
  run_threads();
}

// A warp runs until all of its lanes wait: the largest skew between warps that the barriers allow.
void Block::run_threads() {
  std::vector<unsigned> sequence(warps_.size());
  for (unsigned i = 0; i < sequence.size(); ++i) sequence[i] = i;
  if (options().order == Order::kReverse) std::reverse(sequence.begin(), sequence.end());
  while (live_ > 0) {
    if (options().order == Order::kShuffled) {
      for (std::size_t i = sequence.size(); i > 1; --i) std::swap(sequence[i - 1], sequence[random() % i]);
    }
    bool progressed = false;
    for (const unsigned warp : sequence) progressed |= run_warp(warp);
    if (!progressed && !land_late_copy()) fail_deadlocked();
  }
}

bool Block::run_warp(unsigned index) {
  bool progressed = false;
  while (warps_[index].ready != 0) {
    BlockThread& thread = *threads_[index * kWarp + pick(warps_[index].ready)];
    current = &thread;
    thread.fiber.enter();
    current = nullptr;
    progressed = true;
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    if (options().order == Order::kShuffled && random() % 64 == 0) break;  // another warp gets in between
  }
  return progressed;
}

unsigned Block::pick(unsigned ready) {
  if (options().order == Order::kReverse) return 31u - static_cast<unsigned>(std::countl_zero(ready));
  if (options().order == Order::kShuffled) {
    for (std::uint64_t skip = random() % static_cast<unsigned>(std::popcount(ready)); skip > 0; --skip) {
      ready &= ready - 1;
    }
  }
  return static_cast<unsigned>(std::countr_zero(ready));
}

std::uint64_t Block::random() {  // splitmix64
  random_state_ += 0x9e3779b97f4a7c15ull;
  std::uint64_t z = random_state_;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

void Block::make_ready(BlockThread& thread) {
  thread.wait = Wait::kReady;
  warps_[thread.warp].ready |= 1u << thread.lane;
}

void Block::wait(Wait wait, const Location& location) {
  BlockThread& thread = self();
  thread.wait = wait;
  thread.location = location;
  warp().ready &= ~(1u << thread.lane);
  thread.fiber.leave(false);
}

void Block::release_barrier() {
  at_barrier_ = 0;
  race_block_barrier();
  for (const auto& thread : threads_) {
    if (thread->wait == Wait::kBlock) make_ready(*thread);
  }
}

void Block::arrive_at_barrier(const Location& location) {
  if (at_barrier_ == 0) barrier_location_ = location;
  if (!same_place(barrier_location_, location)) {
    fail("threads meet at different barriers: the others wait at " + describe(barrier_location_), location);
  }
  if (++at_barrier_ == live_) return release_barrier();
  wait(Wait::kBlock, location);
}

Meeting& Block::meeting(unsigned mask, const Location& location) {
  for (const auto& meeting : warp().meetings) {
    if (meeting->mask == mask) return *meeting;
  }
  for (const auto& meeting : warp().meetings) {
    if (meeting->arrived & mask) fail("overlapping masks in one warp at the same time", location);
  }
  warp().meetings.push_back(std::make_unique<Meeting>());
  warp().meetings.back()->mask = mask;
  return *warp().meetings.back();
}

void Block::finish(Meeting& meeting) {
  meeting.complete[meeting.phase & 1] = meeting.arrived;
  const unsigned index = current->warp;
  const unsigned live = warps_[index].live;
  if (meeting.kind == Collective::kSyncWarp && (meeting.mask & live) == live) race_warp_barrier(index);
  for (unsigned lanes = meeting.arrived; lanes != 0; lanes &= lanes - 1) {
    BlockThread& thread = *threads_[index * kWarp + static_cast<unsigned>(std::countr_zero(lanes))];
    if (thread.wait == Wait::kCollective) make_ready(thread);
  }
  meeting.arrived = 0;
  meeting.kind = Collective::kNone;
  ++meeting.phase;
}

void Block::exit_thread() {
  BlockThread& thread = self();
  for (auto& group : thread.copy_groups) std::for_each(group.begin(), group.end(), land);
  std::for_each(thread.open_copies.begin(), thread.open_copies.end(), land);
  thread.wait = Wait::kDone;
  warp().ready &= ~(1u << thread.lane);
  warp().live &= ~(1u << thread.lane);
  --live_;
  if (live_ > 0 && at_barrier_ == live_) release_barrier();
  for (const auto& meeting : warp().meetings) {
    if (meeting->arrived && (meeting->arrived | (meeting->mask & ~warp().live)) == meeting->mask) finish(*meeting);
  }
}

bool Block::happens_now() {
  if (options().order == Order::kShuffled) return (random() & 1) != 0;
  return options().order == Order::kReverse;
}

void Block::wake(const void* event) {
  for (const auto& thread : threads_) {
    if (thread->wait == Wait::kEvent && thread->event == event) make_ready(*thread);
  }
}

void* Block::static_shared(const void* key, std::size_t bytes, std::size_t alignment) {
  for (const auto& [known, memory] : statics_) {
    if (known == key) return memory.get();
  }
  statics_.emplace_back(key, fresh_shared(bytes, std::max<std::size_t>(alignment, 16)));
  race_watch_shared(statics_.back().second.get(), bytes);
  return statics_.back().second.get();
}

void Block::fail_deadlocked() {
  std::string what = "deadlock:";
  int told = 0;
  for (const auto& thread : threads_) {
    if (thread->wait == Wait::kDone || told++ == 4) continue;
    what += " thread " + std::to_string(thread->linear) + " waits at " + describe(thread->location) +
            (thread->wait == Wait::kBlock   ? " for its block;"
             : thread->wait == Wait::kEvent ? " for an event;"
                                            : " for its warp;");
    if (told == 4) break;
  }
  throw Error(what + " " + std::to_string(live_) + " of " + std::to_string(threads_.size()) + " threads are live");
}

}  // namespace

bool left_out(const Location& location) {
  const std::string file = location.file_name();
  const Site site{file.substr(file.rfind('/') + 1), location.line()};
  reached_sites().insert(site);
  return site == options().left_out;
}

bool happens_now() { return block().happens_now(); }
std::uint64_t random_number() { return block().random(); }
void wait_for_event(const void* event, const Location& location) {
  block().self().event = event;
  block().wait(Wait::kEvent, location);
}
void wake(const void* event) { block().wake(event); }

void fail(const std::string& what, const Location& location) {
  const uint3 at = context->block_index;
  throw Error(describe(location) + ": " + what + " (block " + std::to_string(at.x) + "," + std::to_string(at.y) + "," +
              std::to_string(at.z) + " thread " + std::to_string(context->current->linear) + ")");
}

const Slot* exchange(unsigned mask, Collective kind, const void* value, std::size_t bytes, unsigned* arrived,
                     const Location& location) {
  const unsigned lane = context->current->lane;
  if (!(mask >> lane & 1)) fail("the mask lacks the calling lane", location);
  Meeting& meeting = block().meeting(mask, location);
  if (meeting.arrived == 0) {
    meeting.kind = kind;
    meeting.location = location;
  } else if (meeting.kind != kind || !same_place(meeting.location, location)) {
    fail("lanes of one mask meet at different places: the others wait at " + describe(meeting.location), location);
  }
  const unsigned parity = meeting.phase & 1;
  std::memcpy(meeting.slots[parity][lane].bytes, value, bytes);
  meeting.arrived |= 1u << lane;
  if ((meeting.arrived | (mask & ~block().warp().live)) == mask) {
    block().finish(meeting);
  } else {
    block().wait(Wait::kCollective, location);
  }
  *arrived = meeting.complete[parity];
  return meeting.slots[parity];
}

void block_barrier(const Location& location) {
  if (!left_out(location)) block().arrive_at_barrier(location);
}

void warp_barrier(unsigned mask, const Location& location) {
  if (left_out(location)) return;
  unsigned arrived;
  const char nothing = 0;
  exchange(mask, Collective::kSyncWarp, &nothing, sizeof nothing, &arrived, location);
}

void* static_shared(const void* key, std::size_t bytes, std::size_t alignment) {
  return block().static_shared(key, bytes, alignment);
}

void copy_async(void* to, const void* from, std::size_t bytes, bool wanted, const Location& location) {
  const auto addresses = reinterpret_cast<std::uintptr_t>(to) | (wanted ? reinterpret_cast<std::uintptr_t>(from) : 0);
  if (addresses % bytes != 0) fail("an asynchronous copy is not aligned to its size", location);
  race_access(to, bytes, {true, false, __builtin_return_address(0)});
  Copy copy{to, from, bytes, wanted, false};
  if (block().happens_now()) {
    land(copy);
  } else {
    std::memset(to, kNeverWritten, bytes);
  }
  block().self().open_copies.push_back(copy);
}

void commit_copies() {
  BlockThread& thread = block().self();
  thread.copy_groups.push_back(std::exchange(thread.open_copies, {}));
}

void wait_for_copies(unsigned groups_left, const Location& location) {
  if (left_out(location)) return;
  auto& groups = block().self().copy_groups;
  for (; groups.size() > groups_left; groups.pop_front()) {
    for (Copy& copy : groups.front()) {
      race_access(copy.to, copy.bytes, {true, false, __builtin_return_address(0)});
      land(copy);
    }
  }
}

void run(const LaunchShape& shape, void (*body)(void*), void* data) {
  const unsigned threads = shape.block.x * shape.block.y * shape.block.z;
  if (threads == 0 || threads > kThreadsMax) throw Error("launch: " + std::to_string(threads) + " threads in a block");
  if (shape.shared_bytes > options().shared_bytes_max) {
    throw Error("launch: " + std::to_string(shape.shared_bytes) + " bytes of shared memory");
  }
  const dim3 grid = shape.grid;
  if (!grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535) throw Error("launch: impossible grid");

  static thread_local Block block;
  struct Running {
    ~Running() {
      context = nullptr;
      block.current = nullptr;
      race_block_ends();
    }
  } running;
  context = &block;
  block.prepare_launch(shape, body, data);
  race_launch_begins();
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        const auto shared = fresh_shared(shape.shared_bytes, 128);
        block.shared = static_cast<unsigned char*>(shared.get());
        block.shared_bytes = shape.shared_bytes;
        race_block_begins(shared.get(), shape.shared_bytes);
        hopper_block_begins(static_cast<unsigned>(threads));
        block.run_at({x, y, z});
        hopper_block_ends();
        race_block_ends();
      }
    }
  }
}

}  // namespace llmsrv::emulation
