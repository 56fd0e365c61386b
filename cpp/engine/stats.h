// One consistent sample of an engine. Counters only grow: rates are the reader's business.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace llmsrv {

struct EngineStats {
  std::string failure;  // empty while healthy
  int running = 0;
  int waiting = 0;
  int kv_blocks_total = 0;
  int kv_blocks_held = 0;
  int kv_blocks_cached = 0;
  std::uint64_t steps = 0;
  std::uint64_t prompt_tokens = 0;  // computed, recomputation included
  std::uint64_t generation_tokens = 0;
  std::uint64_t recomputed_tokens = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t prefix_queries = 0;               // tokens looked up in the prefix cache
  std::uint64_t prefix_hits = 0;                  // of these, found
  double seconds_since_progress = 0.0;            // 0 while there is nothing to do
  std::map<std::string, std::uint64_t> requests;  // ended, by outcome
};

}  // namespace llmsrv
