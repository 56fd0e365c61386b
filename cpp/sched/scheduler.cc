#include "cpp/sched/scheduler.h"

#include <algorithm>
#include <utility>

#include "cpp/base/check.h"

namespace llmsrv {
namespace {

// Share of the pool that admission leaves free for running sequences to grow into.
constexpr int kWatermarkDivisor = 100;
// Outputs of ordinary length grow once, at admission: those who wait, which may be very many, hold no such memory.
constexpr int kReservedOutputMax = 1024;

}  // namespace

Scheduler::Scheduler(const SchedulerLimits& limits)
    : limits_(limits),
      watermark_blocks_(std::max(1, limits.blocks / kWatermarkDivisor)),
      index_(limits.blocks, limits.block_size, limits.prefix_hash_bits),
      pool_(limits.blocks, &index_, limits.eviction),
      block_tokens_(static_cast<std::size_t>(limits.block_size)) {
  LLMSRV_CHECK(limits_.block_size > 0);
  LLMSRV_CHECK(limits_.max_sequences > 0);
  LLMSRV_CHECK(limits_.max_step_tokens >= limits_.max_sequences);
  const auto sequences = static_cast<std::size_t>(limits_.max_sequences);
  running_.reserve(sequences);
  plan_.ranges.reserve(sequences);
  plan_.admitted.reserve(sequences);
  plan_.preempted.reserve(sequences);
  committed_.reserve(sequences);
}

void Scheduler::add(std::unique_ptr<Sequence> sequence) {
  LLMSRV_CHECK(blocks_for(sequence->prompt_count() + sequence->stop_rules().max_tokens - 1) <= limits_.blocks);
  Sequence* const added = sequence.get();
  const bool inserted = sequences_.emplace(added->id(), std::move(sequence)).second;
  LLMSRV_CHECK(inserted);
  waiting_.insert(added);
}

bool Scheduler::remove(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return false;
  release(*found->second);
  sequences_.erase(found);
  return true;
}

const StepPlan& Scheduler::plan() {
  plan_.clear();
  plan_decodes();
  plan_prompts();
  // Room that a preemption just made belongs to those who run.
  if (plan_.preempted.empty()) admit();
  return plan_;
}

void Scheduler::plan_decodes() {
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    // Victims are less urgent than `sequence`, so what is planned already is never taken back.
    if (sequence.decodes() && grow_or_preempt(sequence)) plan_range(sequence, 1);
  }
}

void Scheduler::plan_prompts() {
  for (Sequence* const sequence : running_) {
    if (budget_left() == 0) return;
    if (!sequence->decodes()) plan_range(*sequence, std::min(sequence->pending_count(), budget_left()));
  }
}

void Scheduler::admit() {
  while (!waiting_.empty() && budget_left() > 0 && static_cast<int>(running_.size()) < limits_.max_sequences) {
    if (!admit_one(**waiting_.begin())) return;
  }
}

// False when blocks for all known tokens of the sequence are not to be had.
bool Scheduler::admit_one(Sequence& sequence) {
  find_prefix(sequence);
  const int found = static_cast<int>(found_.size());
  const int needed = blocks_for(sequence.token_count()) - found;
  // Cached blocks that are about to be shared cannot be taken as well.
  const auto cached = std::count_if(found_.begin(), found_.end(), [&](BlockId id) { return !pool_.is_held(id); });
  // An empty machine takes whatever fits, so that the oldest always advances.
  const int reserve = running_.empty() ? 0 : watermark_blocks_;
  if (needed + reserve > pool_.available_count() - static_cast<int>(cached)) return false;

  sequence.blocks_ = pool_.adopt(found_);
  sequence.blocks_.append(std::move(*pool_.take(needed)));
  sequence.computed_count_ = found * limits_.block_size;
  sequence.indexed_count_ = found;
  sequence.content_ = found > 0 ? std::optional(index_.content(found_.back())) : std::nullopt;
  if (sequence.state_ == SequenceState::kPending) sequence.cached_prompt_count_ = sequence.computed_count_;
  recomputed_tokens_ += static_cast<std::uint64_t>(std::max(0, sequence.lost_count_ - sequence.computed_count_));
  sequence.lost_count_ = 0;
  if (limits_.prefix_cache && sequence.cache_rules().reads) {
    prefix_queries_ += static_cast<std::uint64_t>(sequence.token_count());
    prefix_hits_ += static_cast<std::uint64_t>(sequence.computed_count_);
  }

  waiting_.erase(&sequence);
  sequence.state_ = SequenceState::kRunning;
  sequence.output_.reserve(static_cast<std::size_t>(std::min(sequence.stop_rules().max_tokens, kReservedOutputMax)));
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &sequence, FcfsPolicy()), &sequence);
  plan_.admitted.push_back(sequence.id());
  plan_range(sequence, std::min(sequence.pending_count(), budget_left()));
  return true;
}

// At least one token is always computed: its row gives the next token's distribution.
void Scheduler::find_prefix(const Sequence& sequence) {
  found_.clear();
  if (!limits_.prefix_cache || !sequence.cache_rules().reads) return;
  std::optional<ContentId> parent;
  for (int end = limits_.block_size; end < sequence.token_count(); end += limits_.block_size) {
    sequence.copy_tokens(end - limits_.block_size, block_tokens_);
    const std::optional<BlockId> block = index_.find(parent, block_tokens_, sequence.cache_rules().salt);
    if (!block) return;
    found_.push_back(*block);
    parent = index_.content(*block);
  }
}

void Scheduler::index_full_blocks(Sequence& sequence) {
  if (!limits_.prefix_cache || !sequence.cache_rules().fills) return;
  while ((sequence.indexed_count_ + 1) * limits_.block_size <= sequence.computed_count_) {
    const int first = sequence.indexed_count_ * limits_.block_size;
    // After a block whose hash is taken by another content nothing can be found any more.
    if (first > 0 && !sequence.content_) return;
    sequence.copy_tokens(first, block_tokens_);
    sequence.content_ = index_.insert(sequence.content_, block_tokens_, sequence.cache_rules().salt,
                                      sequence.blocks()[sequence.indexed_count_]);
    ++sequence.indexed_count_;
  }
}

// Makes room for the sequence's next token. False when the sequence itself had to yield.
bool Scheduler::grow_or_preempt(Sequence& sequence) {
  const int missing = blocks_for(sequence.token_count()) - sequence.blocks().size();
  if (missing <= 0) return true;
  while (pool_.available_count() < missing) {
    Sequence& victim = *running_.back();
    preempt(victim);
    if (&victim == &sequence) return false;
  }
  sequence.blocks_.append(std::move(*pool_.take(missing)));
  return true;
}

void Scheduler::preempt(Sequence& victim) {
  victim.lost_count_ = victim.computed_count_;
  ++preemptions_;
  release(victim);
  victim.computed_count_ = 0;
  victim.indexed_count_ = 0;
  victim.content_.reset();
  victim.state_ = SequenceState::kPreempted;
  waiting_.insert(&victim);
  plan_.preempted.push_back(victim.id());
}

void Scheduler::plan_range(Sequence& sequence, int token_count) {
  plan_.ranges.push_back(
      {sequence.id(), sequence.computed_count(), token_count, token_count == sequence.pending_count()});
  plan_.token_count += token_count;
}

void Scheduler::release(Sequence& sequence) {
  if (sequence.state_ == SequenceState::kRunning) {
    running_.erase(std::find(running_.begin(), running_.end(), &sequence));
    sequence.blocks_.clear();
  } else {
    waiting_.erase(&sequence);
  }
  sequence.state_ = SequenceState::kFinished;
}

std::span<const CommittedToken> Scheduler::commit(std::span<const TokenId> tokens) {
  committed_.clear();
  std::size_t next = 0;
  for (const PlannedRange& range : plan_.ranges) {
    const std::size_t row = next;
    if (range.samples) ++next;
    LLMSRV_CHECK(next <= tokens.size());
    const auto found = sequences_.find(range.sequence);
    if (found == sequences_.end()) continue;
    Sequence& sequence = *found->second;
    sequence.computed_count_ += range.token_count;
    index_full_blocks(sequence);
    if (!range.samples) continue;
    sequence.output_.push_back(tokens[row]);
    const std::optional<Finish> finish = check_stop(sequence.stop_rules(), tokens[row], sequence.output_count());
    committed_.push_back({range.sequence, static_cast<int>(row), tokens[row], finish});
    if (finish) remove(range.sequence);
  }
  LLMSRV_CHECK(next == tokens.size());
  plan_.clear();
  return committed_;
}

int Scheduler::clear_prefix_cache() {
  // What follows a forgotten block can never be found: it is not worth indexing.
  for (Sequence* const sequence : running_) sequence->content_.reset();
  return pool_.forget_all();
}

const Sequence& Scheduler::sequence(SequenceId id) const { return *sequences_.at(id); }

SchedulerStats Scheduler::stats() const {
  return {static_cast<int>(running_.size()),
          static_cast<int>(waiting_.size()),
          preemptions_,
          recomputed_tokens_,
          prefix_queries_,
          prefix_hits_};
}

void Scheduler::audit() const {
  pool_.audit();
  LLMSRV_CHECK(running_.size() + waiting_.size() == sequences_.size());
  LLMSRV_CHECK(std::is_sorted(running_.begin(), running_.end(), FcfsPolicy()));
  std::set<BlockId> held;
  for (const auto& [id, sequence] : sequences_) {
    const bool runs = sequence->state() == SequenceState::kRunning;
    const BlockList& blocks = sequence->blocks();
    LLMSRV_CHECK(sequence->id() == id);
    LLMSRV_CHECK(runs || waiting_.count(sequence.get()) == 1);
    LLMSRV_CHECK(runs || (blocks.size() == 0 && sequence->computed_count() == 0));
    LLMSRV_CHECK(sequence->computed_count() < sequence->token_count());
    LLMSRV_CHECK(blocks_for(sequence->computed_count()) <= blocks.size());
    held.insert(blocks.data(), blocks.data() + blocks.size());
  }
  LLMSRV_CHECK(static_cast<int>(held.size()) == pool_.held_count());
}

}  // namespace llmsrv
