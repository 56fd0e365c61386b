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
    : limits_(limits), watermark_blocks_(std::max(1, limits.blocks / kWatermarkDivisor)), pool_(limits.blocks) {
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
    Sequence& sequence = **waiting_.begin();
    const int needed = blocks_for(sequence.token_count());
    // An empty machine takes whatever fits, so that the oldest always advances.
    const int reserve = running_.empty() ? 0 : watermark_blocks_;
    if (needed + reserve > pool_.free_count()) return;
    sequence.blocks_ = std::move(*pool_.take(needed));
    sequence.state_ = SequenceState::kRunning;
    sequence.output_.reserve(static_cast<std::size_t>(std::min(sequence.stop_rules().max_tokens, kReservedOutputMax)));
    waiting_.erase(waiting_.begin());
    running_.insert(std::upper_bound(running_.begin(), running_.end(), &sequence, FcfsPolicy()), &sequence);
    plan_.admitted.push_back(sequence.id());
    plan_range(sequence, std::min(sequence.pending_count(), budget_left()));
  }
}

// Makes room for the sequence's next token. False when the sequence itself had to yield.
bool Scheduler::grow_or_preempt(Sequence& sequence) {
  const int missing = blocks_for(sequence.token_count()) - sequence.blocks().size();
  if (missing <= 0) return true;
  while (pool_.free_count() < missing) {
    Sequence& victim = *running_.back();
    preempt(victim);
    if (&victim == &sequence) return false;
  }
  sequence.blocks_.append(std::move(*pool_.take(missing)));
  return true;
}

void Scheduler::preempt(Sequence& victim) {
  recomputed_tokens_ += static_cast<std::uint64_t>(victim.computed_count_);
  ++preemptions_;
  ++victim.preemption_count_;
  release(victim);
  victim.computed_count_ = 0;
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

const Sequence& Scheduler::sequence(SequenceId id) const { return *sequences_.at(id); }

SchedulerStats Scheduler::stats() const {
  return {static_cast<int>(running_.size()), static_cast<int>(waiting_.size()), preemptions_, recomputed_tokens_};
}

void Scheduler::audit() const {
  pool_.audit();
  LLMSRV_CHECK(running_.size() + waiting_.size() == sequences_.size());
  LLMSRV_CHECK(std::is_sorted(running_.begin(), running_.end(), FcfsPolicy()));
  int held = 0;
  for (const auto& [id, sequence] : sequences_) {
    const bool runs = sequence->state() == SequenceState::kRunning;
    LLMSRV_CHECK(sequence->id() == id);
    LLMSRV_CHECK(runs || waiting_.count(sequence.get()) == 1);
    LLMSRV_CHECK(runs || (sequence->blocks().size() == 0 && sequence->computed_count() == 0));
    LLMSRV_CHECK(sequence->computed_count() < sequence->token_count());
    LLMSRV_CHECK(blocks_for(sequence->computed_count()) <= sequence->blocks().size());
    held += sequence->blocks().size();
  }
  LLMSRV_CHECK(held == pool_.held_count());
}

}  // namespace llmsrv
