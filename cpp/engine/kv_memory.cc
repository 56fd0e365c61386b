#include "cpp/engine/kv_memory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cpp/base/check.h"
#include "cpp/engine/clock.h"

namespace llmsrv {
namespace {

// Share of the newest measurement in the estimate.
constexpr double kNewest = 0.25;
// The first estimate, at start, is made by moving this much.
constexpr double kProbeBytes = 8 << 20;

}  // namespace

KvMemory::KvMemory(const MemoryPlan& plan, Backend& backend)
    : backend_(backend),
      block_bytes_(static_cast<double>(plan.kv_cache.block_bytes())),
      probe_blocks_(
          std::min({plan.kv_cache.blocks, plan.swap.blocks, static_cast<int>(kProbeBytes / block_bytes_) + 1})),
      cache_(plan.kv_cache, backend.allocate(plan.kv_cache.bytes(), MemoryPlace::kDevice)),
      swap_(plan.swap, backend.allocate(plan.swap.bytes(), MemoryPlace::kHost)) {}

void KvMemory::start() {
  std::vector<BlockMove> probe;
  for (BlockId id = 0; id < probe_blocks_; ++id) probe.push_back({id, id});
  if (!probe.empty()) backend_.move_blocks(cache_.layers(), swap_.layers(), probe);  // takes the pages, not timed
  backend_.finish();
  measured_swap(cache_, swap_, probe);
  measured_swap(swap_, cache_, probe);
  take();
}

void KvMemory::move_blocks(const StepPlan& plan) {
  LLMSRV_CHECK(is_here());
  swap(cache_, swap_, plan.swap_outs);
  backend_.move_blocks(cache_.layers(), cache_.layers(), plan.copies);
  swap(swap_, cache_, plan.swap_ins);
}

double KvMemory::swap_s_per_block() const {
  return swap_bytes_per_second_ > 0.0 ? block_bytes_ / swap_bytes_per_second_ : 0.0;
}

void KvMemory::give_back() {
  prefault_.reset();
  cache_.pages()->give_back();
  swap_.pages()->give_back();
}

void KvMemory::take() {
  std::vector<std::span<std::byte>> ranges;
  for (AlignedBuffer* pages : {cache_.pages(), swap_.pages()}) {
    if (pages != nullptr) ranges.emplace_back(pages->data(), pages->size());
  }
  prefault_.emplace(std::move(ranges));
}

void KvMemory::swap(const KvCache& from, const KvCache& to, std::span<const BlockMove> moves) {
  if (!backend_.works_behind()) return measured_swap(from, to, moves);
  backend_.move_blocks(from.layers(), to.layers(), moves);
}

void KvMemory::measured_swap(const KvCache& from, const KvCache& to, std::span<const BlockMove> moves) {
  if (moves.empty()) return;
  const double start_s = monotonic_s();
  backend_.move_blocks(from.layers(), to.layers(), moves);
  backend_.finish();
  const double rate = static_cast<double>(moves.size()) * block_bytes_ / std::max(monotonic_s() - start_s, 1e-9);
  swap_bytes_per_second_ =
      swap_bytes_per_second_ == 0.0 ? rate : (1.0 - kNewest) * swap_bytes_per_second_ + kNewest * rate;
}

}  // namespace llmsrv
