#include "cpp/base/prefault.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "cpp/base/processors.h"

namespace llmsrv {
namespace {

#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;  // the system may know it although the headers do not
#endif

// Of one system call, which keeps others from mapping memory: about a millisecond of filling with zeros.
constexpr std::size_t kChunkBytes = std::size_t{2} << 20;
constexpr std::size_t kPageBytes = 4096;  // the smallest of any system: larger pages are touched more than once

void take(std::span<std::byte> chunk) {
  if (madvise(chunk.data(), chunk.size(), MADV_POPULATE_WRITE) == 0) return;
  // An older system. Adding nothing as one operation takes a page and cannot undo what another thread stores there.
  for (std::size_t at = 0; at < chunk.size(); at += kPageBytes) {
    __atomic_fetch_or(reinterpret_cast<unsigned char*>(chunk.data() + at), static_cast<unsigned char>(0),
                      __ATOMIC_RELAXED);
  }
}

}  // namespace

Prefault::Prefault(std::vector<std::span<std::byte>> ranges) : ranges_(std::move(ranges)), thread_([this] { run(); }) {}

Prefault::~Prefault() {
  stopping_.store(true, std::memory_order_relaxed);
  thread_.join();
}

void Prefault::run() {
  run_anywhere();
  for (const std::span<std::byte> range : ranges_) {
    for (std::size_t at = 0; at < range.size(); at += kChunkBytes) {
      if (stopping_.load(std::memory_order_relaxed)) return;
      take(range.subspan(at, std::min(kChunkBytes, range.size() - at)));
    }
  }
}

}  // namespace llmsrv
