// One consistent sample of an engine. Counters only grow: rates are the reader's business.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace llmsrv {

// The sequences in one state.
struct StateStats {
  int current = 0;            // in it now
  std::uint64_t entered = 0;  // how often one came into it
  double seconds = 0.0;       // spent in it by those that left it
};

struct EngineStats {
  std::string failure;  // empty while healthy
  int running = 0;
  int waiting = 0;
  int kv_blocks_total = 0;
  int kv_blocks_held = 0;
  int kv_blocks_cached = 0;
  int swap_blocks_total = 0;
  int swap_blocks_held = 0;
  double utilization = 0.0;    // token slots filled, or being filled by this step / slots held; 0 when none are held
  double oldest_wait_s = 0.0;  // age of the request that waits longest; 0 when none waits
  // "pending", "running", "swapped", "preempted" (to be computed again), "finished".
  std::map<std::string, StateStats> states;
  std::uint64_t steps = 0;
  std::uint64_t prompt_tokens = 0;  // computed, recomputation included
  std::uint64_t generation_tokens = 0;
  std::uint64_t recomputed_tokens = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t swap_outs = 0;  // sequences
  std::uint64_t swap_ins = 0;
  std::uint64_t swapped_out_blocks = 0;
  std::uint64_t swapped_in_blocks = 0;
  // What the choice between swap and recomputation rests on; 0 until measured.
  double swap_bytes_per_second = 0.0;
  double step_seconds_per_token = 0.0;
  std::uint64_t prefix_queries = 0;               // tokens looked up in the prefix cache
  std::uint64_t prefix_hits = 0;                  // of these, found
  std::uint64_t copied_prefix_tokens = 0;         // of the hits, copied out of a block that matched in part
  std::uint64_t deadline_drops = 0;               // requests ended because their deadline passed or could not be met
  double seconds_since_progress = 0.0;            // 0 while there is nothing to do
  std::map<std::string, std::uint64_t> requests;  // ended, by outcome
};

}  // namespace llmsrv
