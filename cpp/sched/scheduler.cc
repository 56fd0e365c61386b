#include "cpp/sched/scheduler.h"

#include <algorithm>
#include <set>
#include <utility>

#include "cpp/base/check.h"

namespace llmsrv {
namespace {

// Share of the pool that admission leaves free for running sequences to grow into.
constexpr int kWatermarkDivisor = 100;
// Outputs of ordinary length grow once, at admission: those who wait, which may be very many, hold no such memory.
constexpr int kReservedOutputMax = 1024;

// Before anything is sized by them: a record that is replayed may hold any numbers.
const SchedulerLimits& checked(const SchedulerLimits& limits) {
  LLMSRV_CHECK(limits.block_size > 0 && limits.blocks > 0 && limits.swap_blocks >= 0);
  LLMSRV_CHECK(limits.prefix_hash_bits >= 1 && limits.prefix_hash_bits <= 128);
  LLMSRV_CHECK(limits.max_sequences > 0 && limits.max_step_tokens >= limits.max_sequences);
  return limits;
}

}  // namespace

Scheduler::Scheduler(const SchedulerLimits& limits)
    : Scheduler(limits, make_policy(limits.policy, limits.tenant_weights, limits.max_step_tokens)) {}

Scheduler::Scheduler(const SchedulerLimits& limits, std::unique_ptr<Policy> policy)
    : limits_(checked(limits)),
      watermark_blocks_(std::max(1, limits.blocks / kWatermarkDivisor)),
      index_(limits.blocks, limits.block_size, limits.prefix_hash_bits, limits.prefix_hash_key),
      pool_(limits.blocks, &index_, limits.eviction),
      policy_(std::move(policy)),
      block_tokens_(static_cast<std::size_t>(limits.block_size)) {
  if (limits_.swap_blocks > 0) swap_pool_.emplace(limits_.swap_blocks);
  const auto sequences = static_cast<std::size_t>(limits_.max_sequences);
  running_.reserve(sequences);
  plan_.ranges.reserve(sequences);
  for (auto* ids : {&plan_.admitted, &plan_.resumed, &plan_.preempted, &plan_.swapped}) ids->reserve(sequences);
  drawing_.reserve(sequences);
  committed_.reserve(sequences);
}

void Scheduler::add(std::unique_ptr<Sequence> sequence) {
  LLMSRV_CHECK(blocks_for(sequence->prompt_count() + sequence->stop_rules().max_tokens - 1) <= limits_.blocks);
  Sequence* const added = sequence.get();
  const bool inserted = sequences_.emplace(added->id(), std::move(sequence)).second;
  LLMSRV_CHECK(inserted);
  policy_->enter(*added);
  policy_->push(*added);
}

bool Scheduler::remove(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return false;
  Sequence& sequence = *found->second;
  if (sequence.state_ == SequenceState::kRunning) {
    stop_running(sequence);
  } else if (sequence.state_ == SequenceState::kFinished) {
    --ending_;
  } else {
    policy_->erase(sequence);
    counters_.swapped -= sequence.state_ == SequenceState::kSwapped;
  }
  policy_->leave(sequence);
  sequences_.erase(found);
  return true;
}

const StepPlan& Scheduler::plan() {
  if (!plan_.empty()) {
    advance();
    let_go_of_ending();
  }
  plan_.clear();
  order_running();
  make_way();
  plan_decodes();
  plan_prompts();
  return plan_;
}

void Scheduler::order_running() {
  policy_->begin_step(running_);
  const auto before = [&](const Sequence* a, const Sequence* b) { return policy_->before(*a, *b); };
  if (!std::is_sorted(running_.begin(), running_.end(), before)) std::sort(running_.begin(), running_.end(), before);
}

// The first in the queue takes the places of running sequences that it outranks. It is admitted before they can grow:
// the most urgent sequence advances in every step (P5).
void Scheduler::make_way() {
  Sequence* const head = policy_->next();
  if (head == nullptr || running_.empty() || !policy_->outranks(*head, *running_.back())) return;
  find_prefix(*head);
  if (!can_make_way(*head)) return;
  while (!has_place() || !has_room(*head, growth_blocks())) preempt(*running_.back());
  admit(*head);
}

// Whether the sequences that `head` outranks hold enough. A block that two of them share is not counted, so this may
// miss a case; but never that of the most urgent sequence, which outranks all others or goes before nobody's class.
bool Scheduler::can_make_way(const Sequence& head) const {
  int yielding = 0;
  int room = pool_.available_count() - blocks_for(head.token_count()) - growth_blocks();
  for (auto victim = running_.rbegin(); victim != running_.rend() && policy_->outranks(head, **victim); ++victim) {
    ++yielding;
    const BlockList& blocks = (*victim)->blocks();
    room += static_cast<int>(std::count_if(blocks.data(), blocks.data() + blocks.size(),
                                           [&](BlockId id) { return pool_.holders(id) == 1; }));
  }
  return yielding == static_cast<int>(running_.size()) || (room >= 0 && yielding > 0);
}

void Scheduler::plan_decodes() {
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    // Victims are less urgent than `sequence`, so what is planned already is never taken back.
    if (decodes_now(sequence) && grow_or_preempt(sequence)) plan_range(sequence, 1);
  }
}

// Running prompts and waiting sequences in one order: running ones first only within a class.
void Scheduler::plan_prompts() {
  for (std::size_t i = 0; i < running_.size() && budget_left() > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.decodes() || !policy_->has_turn(sequence)) continue;
    i += static_cast<std::size_t>(admit_before(&sequence));
    if (budget_left() > 0) plan_range(sequence, std::min(sequence.pending_count(), budget_left()));
  }
  admit_before(nullptr);
}

// Admits those who wait, in order, while there is room and they go before `limit` (null: all). How many.
int Scheduler::admit_before(const Sequence* limit) {
  // Room that a preemption just made belongs to those who run.
  if (plan_.took_blocks_away()) return 0;
  int admitted = 0;
  for (; budget_left() > 0 && has_place(); ++admitted) {
    Sequence* const head = policy_->next();
    if (head == nullptr || (limit != nullptr && !policy_->before(*head, *limit))) break;
    // An empty machine takes whatever fits, so that the oldest always advances.
    if (!has_room(*head, running_.empty() ? 0 : watermark_blocks_)) break;
    admit(*head);
    plan_range(*head, std::min(head->pending_count(), budget_left()));
  }
  return admitted;
}

// Whether blocks for all known tokens of the sequence are to be had, and `reserve_blocks` more.
bool Scheduler::has_room(Sequence& sequence, int reserve_blocks) {
  find_prefix(sequence);
  const int needed = blocks_for(sequence.token_count()) - static_cast<int>(prefix_.blocks.size());
  // Cached blocks that are about to be shared cannot be taken as well.
  const auto cached =
      std::count_if(prefix_.blocks.begin(), prefix_.blocks.end(), [&](BlockId id) { return pool_.holders(id) == 0; });
  return needed + reserve_blocks <= pool_.available_count() - static_cast<int>(cached);
}

// REQUIRES: has_room() was true for this sequence just now.
void Scheduler::admit(Sequence& sequence) {
  policy_->erase(sequence);
  const int found = static_cast<int>(prefix_.blocks.size());
  sequence.blocks_ = pool_.adopt(prefix_.blocks);
  BlockList fresh = *pool_.take(blocks_for(sequence.token_count()) - found);
  if (sequence.state_ == SequenceState::kSwapped) {
    restore(sequence, fresh);
  } else {
    start_after_prefix(sequence, fresh);
  }
  sequence.blocks_.append(std::move(fresh));
  sequence.indexed_count_ = found;
  sequence.content_ = found > 0 ? std::optional(prefix_.contents.back()) : std::nullopt;
  sequence.output_count_at_admission_ = sequence.output_count();
  sequence.state_ = SequenceState::kRunning;
  sequence.output_.reserve(static_cast<std::size_t>(std::min(sequence.stop_rules().max_tokens, kReservedOutputMax)));
  const auto before = [&](const Sequence* a, const Sequence* b) { return policy_->before(*a, *b); };
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &sequence, before), &sequence);
}

// Brings back what is not found in the cache. `fresh`: the blocks after the found ones.
void Scheduler::restore(Sequence& sequence, const BlockList& fresh) {
  const int found = static_cast<int>(prefix_.blocks.size());
  for (int i = found; i < sequence.swap_blocks_.size(); ++i) {
    plan_.swap_ins.push_back({sequence.swap_blocks_[i], fresh[i - found]});
  }
  counters_.swapped_in_blocks += static_cast<std::uint64_t>(std::max(0, sequence.swap_blocks_.size() - found));
  ++counters_.swap_ins;
  --counters_.swapped;
  sequence.swap_blocks_.clear();
  // Another sequence may have computed more of the same tokens meanwhile.
  sequence.computed_count_ = std::max(sequence.computed_count_, found * limits_.block_size);
  plan_.resumed.push_back(sequence.id());
}

void Scheduler::start_after_prefix(Sequence& sequence, const BlockList& fresh) {
  sequence.computed_count_ = static_cast<int>(prefix_.blocks.size()) * limits_.block_size;
  if (prefix_.partial) {
    plan_.copies.push_back({prefix_.partial->block, fresh[0]});
    sequence.computed_count_ += prefix_.partial->token_count;
    counters_.copied_tokens += static_cast<std::uint64_t>(prefix_.partial->token_count);
  }
  if (sequence.state_ == SequenceState::kPending) sequence.cached_prompt_count_ = sequence.computed_count_;
  counters_.recomputed_tokens +=
      static_cast<std::uint64_t>(std::max(0, sequence.lost_count_ - sequence.computed_count_));
  if (limits_.prefix_cache && sequence.cache_rules().reads) {
    counters_.prefix_queries += static_cast<std::uint64_t>(sequence.token_count());
    counters_.prefix_hits += static_cast<std::uint64_t>(sequence.computed_count_);
  }
  plan_.admitted.push_back(sequence.id());
}

// At least one token is always computed: its row gives the next token's distribution.
void Scheduler::find_prefix(const Sequence& sequence) {
  LLMSRV_CHECK(!sequence.awaited_row());
  Prefix& found = prefix_;
  // What was found for this sequence before holds as long as the blocks hold the same contents.
  std::size_t valid = 0;
  while (found.sequence == sequence.id() && valid < found.blocks.size() && index_.holds(found.blocks[valid]) &&
         index_.content(found.blocks[valid]) == found.contents[valid]) {
    ++valid;
  }
  found.sequence = sequence.id();
  found.blocks.resize(valid);
  found.contents.resize(valid);
  found.partial.reset();
  if (!limits_.prefix_cache || !sequence.cache_rules().reads) return;
  while (static_cast<int>(found.blocks.size() + 1) * limits_.block_size < sequence.token_count()) {
    sequence.copy_tokens(static_cast<int>(found.blocks.size()) * limits_.block_size, block_tokens_);
    const std::optional<ContentId> parent =
        found.contents.empty() ? std::nullopt : std::optional(found.contents.back());
    const std::optional<BlockId> block = index_.find(parent, block_tokens_, sequence.cache_rules().salt);
    if (!block) break;
    found.blocks.push_back(*block);
    found.contents.push_back(index_.content(*block));
  }
  if (sequence.state() != SequenceState::kSwapped) find_partial(sequence);
}

// The longest head of the block after the found ones: of a block that the index knows, or of a sibling's last one.
void Scheduler::find_partial(const Sequence& sequence) {
  const int first = static_cast<int>(prefix_.blocks.size()) * limits_.block_size;
  const int count = std::min(limits_.block_size, sequence.token_count() - 1 - first);
  if (count <= 0) return;
  const std::span<TokenId> tokens = std::span(block_tokens_).first(static_cast<std::size_t>(count));
  sequence.copy_tokens(first, tokens);
  const std::optional<ContentId> parent =
      prefix_.contents.empty() ? std::nullopt : std::optional(prefix_.contents.back());
  prefix_.partial = index_.find_partial(parent, tokens, sequence.cache_rules().salt);
  const auto sibling =
      sequence.cache_rules().sibling ? sequences_.find(*sequence.cache_rules().sibling) : sequences_.end();
  if (sibling == sequences_.end() || !has_contents(*sibling->second)) return;
  const int shared = std::min({sibling->second->computed_count(), sequence.prompt_count(), first + count}) - first;
  if (shared <= (prefix_.partial ? prefix_.partial->token_count : 0)) return;
  prefix_.partial = PartialMatch{sibling->second->blocks()[first / limits_.block_size], shared};
}

// Whether the sequence's blocks hold its computed tokens when this step's copies are made: swap_ins come after them.
bool Scheduler::has_contents(const Sequence& sequence) const {
  return sequence.state() == SequenceState::kRunning &&
         std::find(plan_.resumed.begin(), plan_.resumed.end(), sequence.id()) == plan_.resumed.end();
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

// Blocks that this step's decoding sequences will take.
int Scheduler::growth_blocks() const {
  int blocks = 0;
  for (const Sequence* const sequence : running_) {
    if (decodes_now(*sequence)) blocks += blocks_for(sequence->token_count()) - sequence->blocks().size();
  }
  return blocks;
}

void Scheduler::preempt(Sequence& victim) {
  ++counters_.preemptions;
  std::optional<BlockList> place = take_swap_blocks(victim);
  if (place) {
    for (int i = 0; i < place->size(); ++i) plan_.swap_outs.push_back({victim.blocks()[i], (*place)[i]});
    ++counters_.swap_outs;
    ++counters_.swapped;
    counters_.swapped_out_blocks += static_cast<std::uint64_t>(place->size());
    victim.swap_blocks_ = std::move(*place);
    plan_.swapped.push_back(victim.id());
  } else {
    victim.lost_count_ = victim.computed_count_;
    victim.computed_count_ = 0;
    plan_.preempted.push_back(victim.id());
  }
  stop_running(victim);
  victim.content_.reset();
  victim.state_ = victim.swap_blocks().size() > 0 ? SequenceState::kSwapped : SequenceState::kPreempted;
  policy_->push(victim);
}

// Blocks of the swap pool for all that the victim has computed; nothing when recomputing it is the choice.
std::optional<BlockList> Scheduler::take_swap_blocks(const Sequence& victim) {
  const int count = blocks_for(victim.computed_count());
  if (limits_.preemption == PreemptionMode::kRecompute || !swap_pool_ || count == 0) return std::nullopt;
  if (limits_.preemption == PreemptionMode::kAuto) {
    int lost_tokens = victim.computed_count();
    // Blocks that others hold as well will be found again.
    for (int i = 0; i < count && pool_.holders(victim.blocks()[i]) > 1; ++i) lost_tokens -= limits_.block_size;
    if (2 * count * costs_.swap_s_per_block >= lost_tokens * costs_.recompute_s_per_token) return std::nullopt;
  }
  return swap_pool_->take(count);
}

void Scheduler::plan_range(Sequence& sequence, int token_count) {
  plan_.ranges.push_back(
      {sequence.id(), sequence.computed_count(), token_count, token_count == sequence.pending_count()});
  plan_.token_count += token_count;
  policy_->charge(sequence, token_count);
}

void Scheduler::stop_running(Sequence& sequence) {
  running_.erase(std::find(running_.begin(), running_.end(), &sequence));
  sequence.blocks_.clear();
}

// What is known without the tokens that the newest plan draws.
void Scheduler::advance() {
  LLMSRV_CHECK(!is_ahead_);
  is_ahead_ = true;
  drawing_.clear();
  for (const PlannedRange& range : plan_.ranges) {
    const int row = static_cast<int>(drawing_.size());
    if (range.samples) drawing_.push_back(range.sequence);
    const auto found = sequences_.find(range.sequence);
    if (found == sequences_.end()) continue;
    Sequence& sequence = *found->second;
    sequence.computed_count_ += range.token_count;
    index_full_blocks(sequence);
    if (range.samples) sequence.awaited_row_ = row;
  }
  plan_.clear();
}

// Sequences that have drawn their last token hold nobody up until it is known.
void Scheduler::let_go_of_ending() {
  for (const SequenceId id : drawing_) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) continue;
    Sequence& sequence = *found->second;
    if (sequence.output_count() < sequence.stop_rules().max_tokens) continue;
    stop_running(sequence);
    sequence.state_ = SequenceState::kFinished;
    ++ending_;
  }
}

std::span<const CommittedToken> Scheduler::commit(std::span<const TokenId> tokens) {
  if (!is_ahead_) advance();
  is_ahead_ = false;
  LLMSRV_CHECK(tokens.size() == drawing_.size());
  committed_.clear();
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    const auto found = sequences_.find(drawing_[row]);
    if (found == sequences_.end()) continue;
    Sequence& sequence = *found->second;
    sequence.awaited_row_.reset();
    sequence.output_.push_back(tokens[row]);
    const std::optional<Finish> finish = check_stop(sequence.stop_rules(), tokens[row], sequence.output_count());
    committed_.push_back({sequence.id(), static_cast<int>(row), tokens[row], finish});
    if (finish) remove(sequence.id());
  }
  drawing_.clear();
  return committed_;
}

int Scheduler::clear_prefix_cache() {
  // What follows a forgotten block can never be found: it is not worth indexing.
  for (Sequence* const sequence : running_) sequence->content_.reset();
  return pool_.forget_all();
}

int Scheduler::findable_prompt_tokens(SequenceId id) {
  find_prefix(sequence(id));
  const int partial = prefix_.partial ? prefix_.partial->token_count : 0;
  return static_cast<int>(prefix_.blocks.size()) * limits_.block_size + partial;
}

const Sequence& Scheduler::sequence(SequenceId id) const { return *sequences_.at(id); }

SchedulerStats Scheduler::stats() const {
  SchedulerStats sample = counters_;
  sample.running = static_cast<int>(running_.size());
  sample.waiting = static_cast<int>(sequences_.size() - running_.size()) - ending_;
  return sample;
}

// A block that is not full has one holder, so only those can be counted per sequence.
Scheduler::Slots Scheduler::slots() const {
  Slots slots;
  slots.held = std::int64_t{pool_.held_count()} * limits_.block_size;
  slots.filled = slots.held;
  for (const Sequence* const sequence : running_) {
    slots.filled -= std::int64_t{sequence->blocks().size()} * limits_.block_size - sequence->computed_count();
  }
  return slots;
}

void Scheduler::audit() const {
  pool_.audit();
  if (swap_pool_) swap_pool_->audit();
  const auto before = [&](const Sequence* a, const Sequence* b) { return policy_->before(*a, *b); };
  LLMSRV_CHECK(std::is_sorted(running_.begin(), running_.end(), before));
  std::set<BlockId> held;
  int swap_held = 0;
  std::size_t running = 0;
  int ending = 0;
  int awaiting = 0;
  for (const auto& [id, sequence] : sequences_) {
    const BlockList& blocks = sequence->blocks();
    const bool runs = sequence->state() == SequenceState::kRunning;
    const bool swapped = sequence->state() == SequenceState::kSwapped;
    const bool ends = sequence->state() == SequenceState::kFinished;
    const std::optional<int> row = sequence->awaited_row();
    LLMSRV_CHECK(sequence->id() == id);
    LLMSRV_CHECK(row ? drawing_.at(static_cast<std::size_t>(*row)) == id : !ends);
    awaiting += row.has_value();
    LLMSRV_CHECK(sequence->computed_count() <= sequence->known_count());
    LLMSRV_CHECK(runs == (std::find(running_.begin(), running_.end(), sequence.get()) != running_.end()));
    LLMSRV_CHECK(runs || blocks.size() == 0);
    LLMSRV_CHECK(sequence->swap_blocks().size() == (swapped ? blocks_for(sequence->computed_count()) : 0));
    LLMSRV_CHECK(runs || swapped || ends || sequence->computed_count() == 0);
    LLMSRV_CHECK(sequence->computed_count() < sequence->token_count());
    LLMSRV_CHECK(!runs || blocks_for(sequence->computed_count()) <= blocks.size());
    held.insert(blocks.data(), blocks.data() + blocks.size());
    swap_held += sequence->swap_blocks().size();
    running += runs;
    ending += ends;
  }
  const auto is_here = [&](SequenceId id) { return sequences_.count(id) > 0; };
  LLMSRV_CHECK(awaiting == std::count_if(drawing_.begin(), drawing_.end(), is_here));
  LLMSRV_CHECK(is_ahead_ || drawing_.empty());
  LLMSRV_CHECK(ending == ending_);
  LLMSRV_CHECK(running == running_.size());
  LLMSRV_CHECK(static_cast<int>(held.size()) == pool_.held_count());
  LLMSRV_CHECK(swap_held == (swap_pool_ ? swap_pool_->held_count() : 0));
}

}  // namespace llmsrv
