// Decides what each step computes: continuous batching at token level under a token budget.
//
// A step first gives every decoding sequence its one token, then fills the rest of the budget with chunks of prompts,
// so that a long prompt never stalls others' tokens. A sequence is admitted only when blocks for all of its known
// tokens can be taken at once. When a decoding sequence finds no block, the least urgent running sequence gives up its
// blocks and is computed again later; the most urgent one never yields (promise P5).
//
// Thread rule: engine thread only. Integers only: it knows no model and no memory.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "cpp/base/types.h"
#include "cpp/sched/block_pool.h"
#include "cpp/sched/policy.h"
#include "cpp/sched/prefix_index.h"
#include "cpp/sched/sequence.h"
#include "cpp/sched/step_plan.h"

namespace llmsrv {

// How a sequence gives its blocks up: its keys and values move to the swap pool, or are computed again.
enum class PreemptionMode { kAuto, kSwap, kRecompute };

struct SchedulerLimits {
  int block_size = 16;
  int blocks = 0;
  int max_sequences = 64;     // running at once
  int max_step_tokens = 512;  // >= max_sequences, so that every decoding sequence and one prompt token always fit
  bool prefix_cache = true;
  int prefix_hash_bits = 128;
  EvictionOrder eviction = EvictionOrder::kOnceFirst;
};

// What commit() tells of one sequence that drew a token.
struct CommittedToken {
  SequenceId sequence = 0;
  int row = 0;  // index into what was passed to commit()
  TokenId token = 0;
  std::optional<Finish> finish;
};

struct SchedulerStats {
  int running = 0;
  int waiting = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t recomputed_tokens = 0;  // computed before, given up by a preemption, and not found in the prefix cache
  std::uint64_t prefix_queries = 0;     // tokens looked up in the prefix cache
  std::uint64_t prefix_hits = 0;        // of these, found
};

class Scheduler {
 public:
  // REQUIRES: limits as their comments say; blocks > 0
  explicit Scheduler(const SchedulerLimits& limits);

  // Adds a sequence that waits. REQUIRES: a new id; prompt and max_tokens together fit the pool.
  void add(std::unique_ptr<Sequence> sequence);

  // Ends a sequence in any state and frees its blocks at once. False when it is not there.
  bool remove(SequenceId id);

  // The next step. Empty only when nothing waits or runs. Valid until the next call.
  const StepPlan& plan();

  // Applies what the model drew: `tokens[i]` belongs to the i-th range of the last plan that samples. A sequence that
  // was removed since the plan was made is passed over. Finished sequences are gone afterwards. The result is valid
  // until the next call.
  std::span<const CommittedToken> commit(std::span<const TokenId> tokens);

  // Forgets all contents of blocks. How many blocks became free.
  int clear_prefix_cache();

  // REQUIRES: the sequence is there.
  const Sequence& sequence(SequenceId id) const;
  bool idle() const { return sequences_.empty(); }
  SchedulerStats stats() const;
  const BlockPool& pool() const { return pool_; }

  // Checks every invariant of pool and sequences; throws InternalError. For tests.
  void audit() const;

 private:
  void plan_decodes();
  void plan_prompts();
  void admit();
  bool admit_one(Sequence& sequence);
  void find_prefix(const Sequence& sequence);
  void index_full_blocks(Sequence& sequence);
  bool grow_or_preempt(Sequence& sequence);
  void preempt(Sequence& victim);
  void plan_range(Sequence& sequence, int token_count);
  void release(Sequence& sequence);
  int blocks_for(int token_count) const { return (token_count + limits_.block_size - 1) / limits_.block_size; }
  int budget_left() const { return limits_.max_step_tokens - plan_.token_count; }

  const SchedulerLimits limits_;
  const int watermark_blocks_;
  PrefixIndex index_;
  BlockPool pool_;
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::set<Sequence*, FcfsPolicy> waiting_;  // PENDING and PREEMPTED
  std::vector<Sequence*> running_;           // in the policy's order
  StepPlan plan_;
  std::vector<CommittedToken> committed_;
  std::vector<BlockId> found_;         // scratch of find_prefix: the leading blocks that the index knows
  std::vector<TokenId> block_tokens_;  // scratch: [block_size]
  std::uint64_t preemptions_ = 0;
  std::uint64_t recomputed_tokens_ = 0;
  std::uint64_t prefix_queries_ = 0;
  std::uint64_t prefix_hits_ = 0;
};

}  // namespace llmsrv
