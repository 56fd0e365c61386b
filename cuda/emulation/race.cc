#include "cuda/emulation/race.h"

#include <algorithm>
#include <vector>

#include "cuda/emulation/emulator.h"

namespace llmsrv::emulation {

std::string& first_race() {
  static std::string race;
  return race;
}

#if defined(LLMSRV_RACE_CHECKER)
namespace {

// When and by whom a byte was touched: two touches are ordered when a barrier moved one of the epochs between them.
struct Touch {
  std::uint32_t launch = 0;
  std::uint32_t block = 0;
  std::uint32_t epoch = 0;       // of the block
  std::uint32_t warp_epoch = 0;  // of the warp
  std::uint16_t thread = 0;
  bool atomic = false;
  const void* code = nullptr;
};
// Reads since the last barrier may come from many threads.
struct Cell {
  Touch write;
  Touch read;
  std::uint32_t reading_warps = 0;
  bool read_by_several_threads = false;  // of the warp of `read`, in its warp epoch
  bool read_by_several_blocks = false;
};
struct Range {
  std::uintptr_t base = 0;
  std::size_t bytes = 0;
  std::string name;
  bool shared = false;
  std::vector<Cell> cells;

  bool holds(std::uintptr_t address) const { return address - base < bytes; }
};

std::vector<Range> ranges;
std::uint32_t launch_index = 0;
std::uint32_t block_index = 0;
std::uint32_t epoch = 0;
std::uint32_t warp_epochs[32];

Touch touch_now(const Access& access) {
  const Thread& thread = *context->current;
  return {launch_index,  block_index, epoch, warp_epochs[thread.warp], static_cast<std::uint16_t>(thread.linear),
          access.atomic, access.code};
}

void report(const Range& range, std::size_t offset, const char* what, const Touch& now, const char* other,
            const Touch& before) {
  if (!first_race().empty()) return;
  const auto who = [](const Touch& touch) {
    char code[32];
    std::snprintf(code, sizeof code, "%p", touch.code);
    return "block " + std::to_string(touch.block - 1) + " thread " + std::to_string(touch.thread) + " at " + code;
  };
  first_race() = "race on " + range.name + "+" + std::to_string(offset) + ": " + what + " by " + who(now) + ", " +
                 other + " by " + who(before);
}

bool ordered(const Touch& before, const Touch& now) {
  if (before.block != now.block) return false;
  if (before.epoch != now.epoch || before.thread == now.thread) return true;
  return before.thread / 32 == now.thread / 32 && before.warp_epoch != now.warp_epoch;
}

bool conflicts_with_write(const Cell& cell, const Touch& now) {
  return cell.write.launch == now.launch && !(now.atomic && cell.write.atomic) && !ordered(cell.write, now);
}

bool conflicts_with_reads(const Cell& cell, const Touch& now) {
  if (cell.read.launch != now.launch || (now.atomic && cell.read.atomic)) return false;
  if (cell.read_by_several_blocks || cell.read.block != now.block) return true;
  if (cell.read.epoch != now.epoch) return false;
  const unsigned warp = now.thread / 32u;
  if (cell.reading_warps & ~(1u << warp)) return true;
  if (cell.read.warp_epoch != now.warp_epoch) return false;
  return cell.read_by_several_threads || cell.read.thread != now.thread;
}

void note_read(Cell& cell, const Touch& now) {
  const bool same_launch = cell.read.launch == now.launch;
  const bool same_block = same_launch && cell.read.block == now.block;
  const bool same_epoch = same_block && cell.read.epoch == now.epoch;
  cell.read_by_several_blocks = same_launch && (cell.read_by_several_blocks || !same_block);
  if (!same_epoch) cell.reading_warps = 0;
  const bool same_warp_epoch =
      same_epoch && cell.read.thread / 32 == now.thread / 32 && cell.read.warp_epoch == now.warp_epoch;
  cell.read_by_several_threads = same_warp_epoch && (cell.read_by_several_threads || cell.read.thread != now.thread);
  cell.reading_warps |= 1u << (now.thread / 32);
  cell.read = now;
}

void touch(Range& range, std::size_t offset, std::size_t bytes, const Access& access) {
  const Touch now = touch_now(access);
  for (std::size_t at = offset; at < std::min(offset + bytes, range.bytes); ++at) {
    Cell& cell = range.cells[at];
    const char* what = access.writes ? "write" : "read";
    if (conflicts_with_write(cell, now)) return report(range, at, what, now, "write", cell.write);
    if (access.writes && conflicts_with_reads(cell, now)) return report(range, at, what, now, "read", cell.read);
    if (access.writes) cell.write = now;
    if (!access.writes || access.atomic) note_read(cell, now);
  }
}

void watch(const void* memory, std::size_t bytes, const std::string& name, bool shared) {
  ranges.push_back({reinterpret_cast<std::uintptr_t>(memory), bytes, name, shared, std::vector<Cell>(bytes)});
}

}  // namespace

bool race_checker_built() { return true; }
void watch_global(const void* memory, std::size_t bytes, const std::string& name) { watch(memory, bytes, name, false); }
void unwatch_globals() { ranges.clear(); }
void race_launch_begins() {
  ++launch_index;
  block_index = 0;
}
void race_block_begins(const void* shared, std::size_t bytes) {
  ++block_index;
  race_block_barrier();
  watch(shared, bytes, "dynamic shared memory", true);
}
void race_block_ends() {
  std::erase_if(ranges, [](const Range& range) { return range.shared; });
}
void race_watch_shared(const void* memory, std::size_t bytes) { watch(memory, bytes, "static shared memory", true); }
void race_block_barrier() {
  ++epoch;
  std::fill(std::begin(warp_epochs), std::end(warp_epochs), 0u);
}
void race_warp_barrier(unsigned warp) { ++warp_epochs[warp]; }
void race_access(const void* memory, std::size_t bytes, const Access& access) {
  if (context == nullptr || context->current == nullptr) return;
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  for (Range& range : ranges) {
    if (range.holds(address)) return touch(range, address - range.base, bytes, access);
  }
}
void note_atomic(const void* memory, std::size_t bytes) {
  race_access(memory, bytes, {true, true, __builtin_return_address(0)});
}
#else
bool race_checker_built() { return false; }
void watch_global(const void*, std::size_t, const std::string&) {}
void unwatch_globals() {}
void race_launch_begins() {}
void race_block_begins(const void*, std::size_t) {}
void race_block_ends() {}
void race_watch_shared(const void*, std::size_t) {}
void race_block_barrier() {}
void race_warp_barrier(unsigned) {}
void race_access(const void*, std::size_t, const Access&) {}
void note_atomic(const void*, std::size_t) {}
#endif

}  // namespace llmsrv::emulation

#if defined(LLMSRV_RACE_CHECKER)
// What the compiler calls in instrumented files.
#define LLMSRV_ACCESS(memory, bytes, writes) \
  llmsrv::emulation::race_access(memory, bytes, {writes, false, __builtin_return_address(0)})
#define LLMSRV_ACCESSES_OF(bytes)                                                          \
  void __tsan_read##bytes(void* memory) { LLMSRV_ACCESS(memory, bytes, false); }           \
  void __tsan_write##bytes(void* memory) { LLMSRV_ACCESS(memory, bytes, true); }           \
  void __tsan_unaligned_read##bytes(void* memory) { LLMSRV_ACCESS(memory, bytes, false); } \
  void __tsan_unaligned_write##bytes(void* memory) { LLMSRV_ACCESS(memory, bytes, true); }
extern "C" {
LLMSRV_ACCESSES_OF(1)
LLMSRV_ACCESSES_OF(2)
LLMSRV_ACCESSES_OF(4)
LLMSRV_ACCESSES_OF(8)
LLMSRV_ACCESSES_OF(16)
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* memory, std::size_t bytes) { LLMSRV_ACCESS(memory, bytes, false); }
void __tsan_write_range(void* memory, std::size_t bytes) { LLMSRV_ACCESS(memory, bytes, true); }
}
#endif
