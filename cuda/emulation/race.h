// Finds two accesses to one byte that no barrier orders, whatever order the threads ran in.
//
// The kernels' files are compiled with -fsanitize=thread, but nothing is linked with its library: the calls that the
// compiler puts before each memory access come to race.cc. Two accesses to one byte conflict when one of them writes,
// not both are atomic, and neither a __syncthreads (same block) nor a __syncwarp of the whole warp (same warp) stands
// between them. Two blocks of one launch are never ordered.
// Watched are shared memory, always, and the global buffers that a test names.
//
// In a build without LLMSRV_RACE_CHECKER all of this is empty.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#if defined(LLMSRV_RACE_CHECKER)
#define LLMSRV_NOT_INSTRUMENTED __attribute__((no_sanitize("thread"), noinline))
#else
#define LLMSRV_NOT_INSTRUMENTED
#endif

namespace llmsrv::emulation {

// The first conflict since the last launch that was told to forget; empty when there was none.
std::string& first_race();
void watch_global(const void* memory, std::size_t bytes, const std::string& name);
void unwatch_globals();
bool race_checker_built();

// Called by the emulator.
struct Access {
  bool writes = false;
  bool atomic = false;
  const void* code = nullptr;  // where, for addr2line
};
void race_launch_begins();
void race_block_begins(const void* shared, std::size_t bytes);
void race_block_ends();
void race_watch_shared(const void* memory, std::size_t bytes);
void race_block_barrier();
void race_warp_barrier(unsigned warp);
void race_access(const void* memory, std::size_t bytes, const Access& access);
void note_atomic(const void* memory, std::size_t bytes);

}  // namespace llmsrv::emulation
