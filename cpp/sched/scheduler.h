// Decides what each step computes: continuous batching at token level under a token budget.
//
// A step first gives every decoding sequence its one token, then fills the rest of the budget with chunks of prompts,
// so that a long prompt never stalls others' tokens. A sequence is admitted only when blocks for all of its known
// tokens can be taken at once. When a decoding sequence finds no block, the last running sequence of the policy's order
// gives up its blocks: its keys and values move to the swap pool, or are computed again later, whichever is estimated
// to be cheaper. The first sequence of the order never yields (promise P5).
//
// A step may be planned while the tokens of the one before are not known: what a plan computes, and that its sequences
// have one token more, is known without them. A device that works in order can so be kept busy:
//
//   plan 1 | plan 2, commit 1 | plan 3, commit 2 | ...     instead of     plan 1, commit 1 | plan 2, commit 2 | ...
//
// A sequence that ends with the unknown token for certain is not planned again. One of which commit() finds that it has
// ended is in a plan already: that range is passed over, and its blocks are free at once, since what the device does
// there comes before all that later plans do.
//
// Thread rule: engine thread only. Integers only: it knows no model and no memory.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cpp/base/keyed_hash.h"
#include "cpp/base/types.h"
#include "cpp/sched/block_pool.h"
#include "cpp/sched/policy.h"
#include "cpp/sched/prefix_index.h"
#include "cpp/sched/sequence.h"
#include "cpp/sched/step_plan.h"

namespace llmsrv {

// How a sequence gives its blocks up. Whatever the mode, a full swap pool means recomputation.
enum class PreemptionMode { kAuto, kSwap, kRecompute };

// What kAuto goes by.
struct PreemptionCosts {
  double swap_s_per_block = 0.0;  // one way
  double recompute_s_per_token = 0.0;

  bool operator==(const PreemptionCosts&) const = default;
};

struct SchedulerLimits {
  int block_size = 16;
  int blocks = 0;
  int swap_blocks = 0;        // of the swap pool
  int max_sequences = 64;     // running at once
  int max_step_tokens = 512;  // >= max_sequences, so that every decoding sequence and one prompt token always fit
  bool prefix_cache = true;
  int prefix_hash_bits = 128;
  HashKey prefix_hash_key = random_hash_key();
  EvictionOrder eviction = EvictionOrder::kOnceFirst;
  PreemptionMode preemption = PreemptionMode::kAuto;
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  std::map<std::string, double> tenant_weights;  // for kFair
};

// What commit() tells of one sequence that drew a token.
struct CommittedToken {
  SequenceId sequence = 0;
  int row = 0;  // index into what was passed to commit()
  TokenId token = 0;
  std::optional<Finish> finish;
};

// Counters only grow.
struct SchedulerStats {
  int running = 0;
  int waiting = 0;  // in any state that waits
  int swapped = 0;
  std::uint64_t preemptions = 0;  // of both kinds
  std::uint64_t swap_outs = 0;    // sequences
  std::uint64_t swap_ins = 0;
  std::uint64_t swapped_out_blocks = 0;
  std::uint64_t swapped_in_blocks = 0;
  std::uint64_t recomputed_tokens = 0;  // computed before, given up by a preemption, and not found in the prefix cache
  std::uint64_t prefix_queries = 0;     // tokens looked up in the prefix cache
  std::uint64_t prefix_hits = 0;        // of these, found
  std::uint64_t copied_tokens = 0;      // of these, by copying the head of a block
};

class Scheduler {
 public:
  // REQUIRES: limits as their comments say; blocks > 0
  explicit Scheduler(const SchedulerLimits& limits);
  // The same with a policy of the caller's.
  Scheduler(const SchedulerLimits& limits, std::unique_ptr<Policy> policy);

  // Adds a sequence that waits. REQUIRES: a new id; prompt and max_tokens together fit the pool.
  void add(std::unique_ptr<Sequence> sequence);

  // Ends a sequence in any state and frees its blocks at once. False when it is not there.
  bool remove(SequenceId id);

  // The next step. Empty only when nothing waits or runs, but for sequences that end with a token that is not known
  // yet. Valid until the next call of plan() or commit().
  // REQUIRES: of the plans before that are not empty all, or all but the last one, are committed
  const StepPlan& plan();

  // Applies what the model drew in the first plan that is not committed yet: `tokens[i]` belongs to the i-th range of
  // it that samples. A sequence that was removed since the plan was made is passed over. Finished sequences are gone
  // afterwards. The result is valid until the next call.
  std::span<const CommittedToken> commit(std::span<const TokenId> tokens);

  // Forgets all contents of blocks. How many blocks became free.
  int clear_prefix_cache();

  void set_costs(const PreemptionCosts& costs) { costs_ = costs; }

  // Leading prompt tokens of a waiting sequence that its admission would not have to compute.
  // REQUIRES: the sequence is there and has never run.
  int findable_prompt_tokens(SequenceId id);

  // REQUIRES: the sequence is there.
  const Sequence& sequence(SequenceId id) const;
  bool idle() const { return sequences_.empty(); }
  SchedulerStats stats() const;
  const BlockPool& pool() const { return pool_; }
  // Null when there is no swap space.
  const BlockPool* swap_pool() const { return swap_pool_ ? &*swap_pool_ : nullptr; }
  // Token slots of held blocks, and those of them that carry a computed token. O(running).
  struct Slots {
    std::int64_t held = 0;
    std::int64_t filled = 0;
  };
  Slots slots() const;

  // Checks every invariant of pools and sequences; throws InternalError. For tests.
  void audit() const;

 private:
  // The longest known beginning of one waiting sequence. Kept until another one is looked up, since the first in the
  // queue is looked up again in every step until it fits.
  struct Prefix {
    std::optional<SequenceId> sequence;
    std::vector<BlockId> blocks;
    std::vector<ContentId> contents;      // of `blocks`, when they were found
    std::optional<PartialMatch> partial;  // the head of the block after them
  };

  void advance();
  void let_go_of_ending();
  void order_running();
  void make_way();
  bool can_make_way(const Sequence& head) const;
  void plan_decodes();
  void plan_prompts();
  int admit_before(const Sequence* limit);
  bool has_room(Sequence& sequence, int reserve_blocks);
  void admit(Sequence& sequence);
  void restore(Sequence& sequence, const BlockList& fresh);
  void start_after_prefix(Sequence& sequence, const BlockList& fresh);
  void find_prefix(const Sequence& sequence);
  void find_partial(const Sequence& sequence);
  bool has_contents(const Sequence& sequence) const;
  void index_full_blocks(Sequence& sequence);
  bool grow_or_preempt(Sequence& sequence);
  int growth_blocks() const;
  void preempt(Sequence& victim);
  std::optional<BlockList> take_swap_blocks(const Sequence& victim);
  void plan_range(Sequence& sequence, int token_count);
  void stop_running(Sequence& sequence);
  bool decodes_now(const Sequence& sequence) const { return sequence.decodes() && policy_->has_turn(sequence); }
  int blocks_for(int token_count) const { return (token_count + limits_.block_size - 1) / limits_.block_size; }
  int budget_left() const { return limits_.max_step_tokens - plan_.token_count; }
  bool has_place() const { return static_cast<int>(running_.size()) < limits_.max_sequences; }

  const SchedulerLimits limits_;
  const int watermark_blocks_;
  PreemptionCosts costs_;
  PrefixIndex index_;
  BlockPool pool_;
  std::optional<BlockPool> swap_pool_;
  std::unique_ptr<Policy> policy_;  // holds those that wait
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::vector<Sequence*> running_;  // in the policy's order
  StepPlan plan_;                   // the newest; empty when it is committed
  // Whether the plan before the newest one is not committed; what it lets its sequences draw is theirs already.
  bool is_ahead_ = false;
  std::vector<SequenceId> drawing_;  // the sequences of its tokens, in order; some may be gone
  int ending_ = 0;                   // sequences that only wait for their last token
  std::vector<CommittedToken> committed_;
  Prefix prefix_;                      // scratch of find_prefix
  std::vector<TokenId> block_tokens_;  // scratch: [block_size]
  SchedulerStats counters_;            // running and waiting are filled in by stats()
};

}  // namespace llmsrv
