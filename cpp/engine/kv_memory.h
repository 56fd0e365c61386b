// The memory of keys and values: the cache that the model works on, and the swap pool beside it. Moves blocks as a plan
// says, measures how fast that is, and lends the pages to the system while nobody needs them.
// Thread rule: engine thread only, after construction.
#pragma once

#include <optional>

#include "cpp/base/prefault.h"
#include "cpp/engine/memory_plan.h"
#include "cpp/model/kv_cache.h"
#include "cpp/ops/backend.h"
#include "cpp/sched/step_plan.h"

namespace llmsrv {

class KvMemory {
 public:
  // Reserves all memory. `backend` outlives it.
  KvMemory(const MemoryPlan& plan, Backend& backend);
  // Measures the bandwidth between the two once, and takes the memory. Called once, before anything else.
  void start();

  const KvCache& cache() const { return cache_; }

  // Does a plan's moves in their order. REQUIRES: the pages are here
  void move_blocks(const StepPlan& plan);

  // Of moves between cache and swap pool, of late, or at start where the device works behind; 0 without a swap pool.
  double swap_bytes_per_second() const { return swap_bytes_per_second_; }
  // One way; 0 without a swap pool.
  double swap_s_per_block() const;

  // Whether the system can have the pages for a while.
  bool can_be_lent() { return cache_.pages() != nullptr && swap_.pages() != nullptr; }
  // Whether the pages are here, or coming. Giving them back loses all contents.
  // REQUIRES of give_back(): can_be_lent()
  bool is_here() const { return prefault_.has_value(); }
  void give_back();
  // Has a thread take all pages from the system (promise P8). Nobody waits for it: a page that is needed before it
  // comes is taken by the one who touches it.
  // REQUIRES: they are not here
  void take();
  // Takes no more of them: nobody will need any.
  void stop() { prefault_.reset(); }

 private:
  void swap(const KvCache& from, const KvCache& to, std::span<const BlockMove> moves);
  // Waits for the end of it.
  void measured_swap(const KvCache& from, const KvCache& to, std::span<const BlockMove> moves);

  Backend& backend_;
  const double block_bytes_;
  const int probe_blocks_;
  KvCache cache_;
  KvCache swap_;
  double swap_bytes_per_second_ = 0.0;
  std::optional<Prefault> prefault_;  // last: it works on the memory above
};

}  // namespace llmsrv
