#include "cpp/engine/engine.h"

#include <algorithm>
#include <random>
#include <stdexcept>
#include <utility>

#include "cpp/base/check.h"
#include "cpp/base/counter_rng.h"
#include "cpp/engine/clock.h"
#include "cpp/engine/pack.h"
#include "cpp/engine/validate.h"
#include "cpp/sample/logprobs.h"
#include "cpp/sample/row_scan.h"

namespace llmsrv {
namespace {

constexpr std::size_t kOutboxCapacity = 1 << 16;

const Weights& complete(const Weights& weights) {
  const std::vector<std::string> missing = weights.missing();
  if (missing.empty()) return weights;
  std::string message = std::to_string(missing.size()) + " weights are missing: ";
  for (const std::string& name : missing) message += (name == missing.front() ? "" : ", ") + name;
  throw std::invalid_argument(message);
}

const EngineConfig& checked(const EngineConfig& config, const Weights& weights) {
  check_config(config, complete(weights).spec());
  return config;
}

SchedulerLimits scheduler_limits(const EngineConfig& config, const MemoryPlan& plan) {
  SchedulerLimits limits;
  limits.block_size = config.block_size;
  limits.blocks = plan.kv_cache.blocks;
  limits.swap_blocks = plan.swap.blocks;
  limits.max_sequences = config.max_num_seqs;
  limits.max_step_tokens = config.max_num_batched_tokens;
  limits.prefix_cache = config.prefix_cache;
  limits.prefix_hash_bits = config.prefix_hash_bits;
  limits.preemption = config.preemption_mode;
  limits.policy = config.scheduling_policy;
  limits.tenant_weights = config.tenant_weights;
  return limits;
}

}  // namespace

Engine::Engine(std::shared_ptr<const Weights> weights, const EngineConfig& config, std::shared_ptr<Team> team,
               const DeviceOptions& device)
    : Engine(weights, config, std::move(team), [&](ThreadPool& pool) {
        DeviceOptions all = device;
        all.deterministic = config.deterministic;
        return make_backend(pool, all, weights->formats());
      }) {}

// Memory that the device does not have is a config that does not fit.
Engine::Engine(std::shared_ptr<const Weights> weights, const EngineConfig& config, std::shared_ptr<Team> team,
               const BackendFactory& make_backend) try
    : weights_(std::move(weights)),
      config_(checked(config, *weights_)),
      seed_(std::random_device{}() | std::uint64_t{std::random_device{}()} << 32),
      team_(std::move(team)),
      backend_(make_backend(team_->pool())),
      plan_(plan_memory(weights_->spec(), weights_->formats(), config_, *backend_)),
      memory_(plan_, *backend_),
      decoder_(*weights_, *backend_, memory_.cache(), decoder_limits(config_)),
      limits_(scheduler_limits(config_, plan_)),
      scheduler_(limits_),
      inbox_({config_.max_queued_requests, config_.max_queued_tokens}),
      outbox_(kOutboxCapacity) {
  if (config_.idle_timeout && !memory_.can_be_lent()) {
    throw std::invalid_argument("idle_timeout cannot be used with this device: its memory is not given back");
  }
  const auto tokens = static_cast<std::size_t>(config_.max_num_batched_tokens);
  inputs_.tokens.reserve(tokens);
  inputs_.positions.reserve(tokens);
  inputs_.slots.reserve(tokens);
  inputs_.ranges.reserve(static_cast<std::size_t>(config_.max_num_seqs));
  if (config_.trace_steps) trace_.emplace(*config_.trace_steps, limits_);
  stats_.kv_blocks_total = plan_.kv_cache.blocks;
  stats_.swap_blocks_total = plan_.swap.blocks;
  sample_scheduler(0);
  thread_ = std::thread([this] { run(); });
} catch (const DeviceError& error) {
  throw std::invalid_argument(std::string("the device cannot take this model: ") + error.what());
}

Engine::~Engine() { shutdown(); }

std::vector<Violation> Engine::validate(const Request& request) const {
  return llmsrv::validate(request, weights_->spec(), config_, plan_.kv_cache.blocks);
}

std::variant<RequestKey, Status> Engine::submit(Request request) {
  std::vector<Violation> violations = validate(request);
  std::optional<Status> misfit = never_fits(request, weights_->spec(), config_, plan_.kv_cache.blocks);
  std::variant<RequestKey, Status> result;
  if (!violations.empty()) {
    result = Status::invalid(std::move(violations));
  } else if (misfit) {
    result = std::move(*misfit);
  } else {
    result = inbox_.submit(std::move(request));
  }
  if (const Status* refusal = std::get_if<Status>(&result)) count_outcome(status_code_name(refusal->code()));
  return result;
}

std::vector<std::string> Engine::abort_all() {
  std::vector<std::string> ids;
  for (const auto& [id, key] : inbox_.in_flight()) {
    if (inbox_.end(key, FinishReason::kAborted)) ids.push_back(id);
  }
  return ids;
}

int Engine::clear_prefix_cache() {
  try {
    return inbox_.clear_prefix_cache().get();
  } catch (const std::future_error&) {  // the engine ended before it could answer
    return 0;
  }
}

void Engine::shutdown() {
  const std::lock_guard lock(shutdown_mutex_);
  // Closed first: what is accepted after the engine thread drained the inbox for the last time would never end.
  inbox_.close(Status(StatusCode::kUnavailable, "the engine is shut down"));
  stopping_ = true;
  outbox_.lift_limit();
  if (thread_.joinable()) thread_.join();
  // Closed last: a reader that sees an empty result from a closed outbox has seen every final output.
  outbox_.close();
}

void Engine::run() {
  team_->pool().pin_owner();
  try {
    {
      const Team::Turn turn(*team_);
      memory_.start();
    }
    while (!stopping_) step();
    end_everything(FinishReason::kAborted);
    backend_->finish();  // with what nobody awaits any more: it works on memory that may go now
  } catch (const std::exception& error) {
    failed_ = true;
    {
      const std::lock_guard lock(stats_mutex_);
      stats_.failure = error.what();
    }
    inbox_.close(Status(StatusCode::kUnavailable, std::string("the engine failed: ") + error.what()));
    end_everything(Status(StatusCode::kInternal, std::string("the engine failed: ") + error.what()));
  }
  memory_.stop();
}

void Engine::step() {
  Team::Turn turn(*team_);  // before all else: the plan has what came while others computed
  apply_inbox();
  end_expired();
  const StepPlan& plan = plan_step();
  update_stats(plan);
  if (!plan.empty()) launch(plan);
  turn.release();  // before what may wait: a device, or a slow reader of this model, holds up no other one
  const bool works = !launched_.empty();
  // A device that works behind is at the newest step while the one before is collected.
  const std::size_t left = plan.empty() || !backend_->works_behind() ? 0 : 1;
  while (launched_.size() > left) collect();
  send();
  if (!works) rest();
}

const StepPlan& Engine::plan_step() {
  const PreemptionCosts costs{memory_.swap_s_per_block(), step_cost_.seconds_per_token().value_or(0.0)};
  scheduler_.set_costs(costs);
  const StepPlan& plan = scheduler_.plan();
  if (trace_) {
    trace_->costs(costs);
    trace_->plan(plan);
  }
  return plan;
}

void Engine::launch(const StepPlan& plan) {
  note_plan(plan);
  if (!memory_.is_here()) memory_.take();
  memory_.move_blocks(plan);
  launched_.push_back({plan.ranges, plan.token_count, monotonic_s()});
  pack(plan, scheduler_, config_.block_size, inputs_);
  decoder_.forward(inputs_);
  report_prompt_logprobs(plan);
  draw(plan);
}

// Ends the oldest step that was launched.
void Engine::collect() {
  const LaunchedStep step = std::move(launched_.front());
  launched_.erase(launched_.begin());
  const std::span<const Sampled> drawn = backend_->drawn();
  const double start_s = std::max(step.start_s, collected_s_);  // the device had the one before until then
  collected_s_ = monotonic_s();
  step_cost_.note(step.token_count, collected_s_ - start_s);
  drawn_tokens_.clear();
  for (const Sampled& sampled : drawn) drawn_tokens_.push_back(sampled.token);
  fail_unusable(step.ranges, drawn);
  if (trace_) trace_->commit(drawn_tokens_);
  publish(scheduler_.commit(drawn_tokens_), drawn);
}

// Nothing is in flight: waits for work, and after a while lends the KV memory to the system.
void Engine::rest() {
  if (trace_) trace_->flush();
  if (config_.idle_timeout && memory_.is_here() && !inbox_.wait(config_.idle_timeout)) {
    std::promise<int> nobody_asked;
    clear_cache(nobody_asked);
    memory_.give_back();
  }
  inbox_.wait();
}

void Engine::apply_inbox() {
  inbox_.drain(batch_);
  begin_batch();
  for (std::promise<int>& answer : batch_.cache_clears) clear_cache(answer);
  batch_.cache_clears.clear();
  for (const Ending& ending : batch_.endings) {
    const auto found = requests_.find(ending.key);
    if (found != requests_.end()) end_request(*found->second, ending.reason);
  }
  tell();
}

void Engine::clear_cache(std::promise<int>& answer) {
  const int freed = scheduler_.clear_prefix_cache();
  if (trace_) trace_->clear_prefix_cache(freed);
  sample_scheduler(0);  // who has the answer sees it in the stats too
  answer.set_value(freed);
}

void Engine::end_expired() {
  const double now_s = monotonic_s();
  while (const std::optional<Expiry> expiry = expiries_.take_due(now_s)) {
    LiveRequest& live = *requests_.at(expiry->request);
    std::erase(live.expiries, *expiry);
    look_at(live, *expiry, now_s);
  }
  if (!outputs_.empty()) tell();
}

// `live` may be gone afterwards.
void Engine::look_at(LiveRequest& live, const Expiry& expiry, double now_s) {
  switch (expiry.kind) {
    case ExpiryKind::kQueueTimeout:
      if (live.admitted_s) return;
      return end_request(
          live, Status(StatusCode::kResourceExhausted, "no place in a batch was free in time (queue_timeout)"));
    case ExpiryKind::kLatestStart:
      return live.admitted_s ? void() : must_start(live, now_s);
    case ExpiryKind::kDeadline:
      return end_request(live, Status(StatusCode::kDeadlineExceeded, "the deadline passed"));
    case ExpiryKind::kTimeLimit:
      return end_request(live, FinishReason::kTimeLimit);
  }
}

// Ends a request that waits and whose first token would come after its deadline even if it were admitted now.
void Engine::must_start(LiveRequest& live, double now_s) {
  const int uncached = live.usage.prompt_tokens - scheduler_.findable_prompt_tokens(live.sequences.front());
  const double prefill_s = least_prefill_s(uncached);
  const double latest_s = live.submitted_s + *live.request.deadline_s - prefill_s;
  if (latest_s > now_s) return expire_at(live, ExpiryKind::kLatestStart, latest_s);
  end_request(
      live, Status(StatusCode::kDeadlineExceeded,
                   "the deadline cannot be met: the request waits, and reading its prompt takes longer than is left"));
}

// Half of the estimate, so that only those without hope are given up.
double Engine::least_prefill_s(int tokens) const { return 0.5 * tokens * step_cost_.slope_s().value_or(0.0); }

void Engine::expire_at(LiveRequest& live, ExpiryKind kind, double time_s) {
  const Expiry expiry{time_s, live.key, kind};
  expiries_.add(expiry);
  live.expiries.push_back(expiry);
}

// When begin() fails, what was not begun stays in the batch, and end_everything() goes on from there.
void Engine::begin_batch() {
  for (Submission& submission : batch_.submissions) {
    if (requests_.count(submission.key) == 0) begin(std::move(submission));
  }
  batch_.submissions.clear();
}

void Engine::begin(Submission submission) {
  auto owned = std::make_unique<LiveRequest>();
  LiveRequest& live = *owned;
  live.key = submission.key;
  live.submitted_s = submission.time_s;
  live.prompt = std::make_shared<const std::vector<TokenId>>(std::move(submission.request.prompt));
  live.request = std::move(submission.request);
  live.seed = live.request.seed.value_or(splitmix64(seed_ ^ live.key));
  live.usage.prompt_tokens = static_cast<int>(live.prompt->size());
  live.choices_left = live.request.n;

  const StoppingParams& stopping = live.request.stopping;
  StopRules& rules = live.stop_rules;
  rules.max_tokens = stopping.max_tokens.value_or(config_.max_model_len - live.usage.prompt_tokens);
  rules.min_tokens = stopping.min_tokens;
  rules.stop_token_ids = stopping.stop_token_ids;
  if (!stopping.ignore_eos) rules.eos_token_ids = config_.eos_token_ids;
  live.stop_ids = rules.stop_token_ids;
  live.stop_ids.insert(live.stop_ids.end(), rules.eos_token_ids.begin(), rules.eos_token_ids.end());

  for (int index = 0; index < live.request.n; ++index) {
    const SequenceId id = next_sequence_++;
    live.sequences.push_back(id);
    choices_.emplace(id, Choice{&live, index, states_.begin(live.submitted_s)});
  }
  requests_.emplace(live.key, std::move(owned));
  waiting_since_.emplace(live.submitted_s, live.key);
  if (failed_) return;  // it is here only to be ended
  set_expiries(live);
  // The other choices follow the first one's first token: by then the prompt's blocks are there to be shared.
  const bool shares = config_.prefix_cache && !live.request.bypass_prefix_cache;
  add_choices(live, 0, shares ? 1 : live.request.n);
}

void Engine::set_expiries(LiveRequest& live) {
  const double start_s = live.submitted_s;
  const Request& request = live.request;
  if (request.queue_timeout_s) expire_at(live, ExpiryKind::kQueueTimeout, start_s + *request.queue_timeout_s);
  if (request.stopping.time_limit_s) expire_at(live, ExpiryKind::kTimeLimit, start_s + *request.stopping.time_limit_s);
  if (!request.deadline_s) return;
  const double end_s = start_s + *request.deadline_s;
  expire_at(live, ExpiryKind::kDeadline, end_s);
  expire_at(live, ExpiryKind::kLatestStart, end_s - least_prefill_s(live.usage.prompt_tokens));
}

void Engine::add_choices(LiveRequest& live, int first, int end) {
  const bool uses_cache = !live.request.bypass_prefix_cache;
  for (int index = first; index < end; ++index) {
    // Log-probabilities of a prompt need all of its rows.
    const bool reads = uses_cache && !(index == 0 && live.request.output.prompt_logprobs);
    CacheRules rules{live.request.cache_salt, reads, uses_cache, std::nullopt};
    if (reads && index > 0) rules.sibling = live.sequences.front();
    const SequenceId id = live.sequences[static_cast<std::size_t>(index)];
    scheduler_.add(std::make_unique<Sequence>(id, live.prompt, live.stop_rules, std::move(rules),
                                              Claim{live.request.priority, live.request.tenant}));
    if (trace_) trace_->add(scheduler_.sequence(id));
  }
  live.choices_added = end;
}

void Engine::note_plan(const StepPlan& plan) {
  const double now_s = monotonic_s();
  const auto move = [&](SequenceId id, SequenceState to) -> LiveRequest& {
    Choice& choice = choices_.at(id);
    states_.move(choice.clock, to, now_s);
    return *choice.live;
  };
  for (const SequenceId id : plan.admitted) {
    LiveRequest& live = move(id, SequenceState::kRunning);
    if (!live.admitted_s) note_first_admission(live, scheduler_.sequence(id), now_s);
  }
  for (const SequenceId id : plan.resumed) move(id, SequenceState::kRunning);
  for (const SequenceId id : plan.preempted) ++move(id, SequenceState::kPreempted).preemptions;
  for (const SequenceId id : plan.swapped) ++move(id, SequenceState::kSwapped).preemptions;
}

void Engine::note_first_admission(LiveRequest& live, const Sequence& sequence, double now_s) {
  live.admitted_s = now_s;
  live.usage.cached_prompt_tokens = sequence.cached_prompt_count();
  waiting_since_.erase({live.submitted_s, live.key});
  inbox_.leave_queue(live.usage.prompt_tokens);
}

void Engine::report_prompt_logprobs(const StepPlan& plan) {
  int first_row = 0;
  for (const PlannedRange& range : plan.ranges) {
    const Choice& choice = choices_.at(range.sequence);
    // The choices share the prompt: the first one reports it.
    const LiveRequest& live = *choice.live;
    const bool reports = live.request.output.prompt_logprobs && choice.index == 0 && !live.unusable;
    if (reports) report_prompt_range(range, first_row, choice);
    first_row += range.token_count;
  }
}

// The row of position p holds the distribution of position p + 1. A range that is computed again after a preemption
// reports only what was not reported before.
void Engine::report_prompt_range(const PlannedRange& range, int first_row, const Choice& choice) {
  LiveRequest& live = *choice.live;
  const int end = std::min(range.first_position + range.token_count + 1, live.usage.prompt_tokens);
  while (live.prompt_logprobs_next < end) {
    const int first = live.prompt_logprobs_next;
    const int count = std::min(end - first, config_.max_num_seqs);
    logits_rows_.clear();
    for (int i = 0; i < count; ++i) logits_rows_.push_back(first_row + first + i - 1 - range.first_position);
    const TensorView logits = backend_->to_host(decoder_.logits(logits_rows_));
    Output output;
    output.request = live.key;
    output.index = choice.index;
    output.prompt_logprobs.resize(static_cast<std::size_t>(count));
    std::atomic<bool> finite{true};
    team_->pool().run([&](int member) {
      const ThreadPool::Range share = team_->pool().share(count, member);
      for (int i = share.begin; i < share.end; ++i) {
        const std::span<const float> row(logits.f32_row(i), static_cast<std::size_t>(logits.cols));
        if (!all_finite(row)) {
          finite = false;
          return;
        }
        const TokenId token = (*live.prompt)[static_cast<std::size_t>(first + i)];
        output.prompt_logprobs[static_cast<std::size_t>(i)] =
            token_logprob(row, token, live.request.output.top_logprobs);
      }
    });
    if (!finite) {
      live.unusable = true;  // fail_unusable() ends it: plans still name its sequences
      return;
    }
    outputs_.push_back(std::move(output));
    live.prompt_logprobs_next += count;
  }
}

// Also of a step that has no row to draw from: who takes its results waits for its end.
void Engine::draw(const StepPlan& plan) {
  logits_rows_.clear();
  sample_rows_.clear();
  int end_row = 0;
  for (const PlannedRange& range : plan.ranges) {
    end_row += range.token_count;
    if (!range.samples) continue;
    const Sequence& sequence = scheduler_.sequence(range.sequence);
    const Choice& choice = choices_.at(range.sequence);
    const LiveRequest& live = *choice.live;
    SampleRow row;
    row.params = &live.request.sampling;
    row.prompt = sequence.prompt();
    row.output = sequence.output();
    // The token to be drawn is number output_count + 1: a stop before min_tokens must not be drawn at all.
    if (sequence.output_count() + 1 < sequence.stop_rules().min_tokens) row.forbidden = live.stop_ids;
    row.seed = live.seed;
    row.choice = static_cast<std::uint32_t>(choice.index);
    row.pending = sequence.awaited_row();
    if (live.request.output.logprobs) row.top_logprobs = live.request.output.top_logprobs;
    logits_rows_.push_back(end_row - 1);
    sample_rows_.push_back(row);
  }
  backend_->draw(decoder_.logits(logits_rows_), sample_rows_);
}

// A row without a usable number ends its own request; the others go on (promise P4).
void Engine::fail_unusable(std::span<const PlannedRange> ranges, std::span<const Sampled> drawn) {
  std::size_t row = 0;
  for (const PlannedRange& range : ranges) {
    const bool drawn_well = !range.samples || drawn[row++].finite;
    const auto found = choices_.find(range.sequence);
    if (found == choices_.end()) continue;  // it has ended since, or another choice of its request failed before
    if (drawn_well && !found->second.live->unusable) continue;
    end_request(*found->second.live, Status(StatusCode::kInternal, "the model's output is not a finite number"));
  }
}

void Engine::publish(std::span<const CommittedToken> committed, std::span<const Sampled> drawn) {
  const double now_s = monotonic_s();
  {
    const std::lock_guard lock(stats_mutex_);
    stats_.generation_tokens += committed.size();
  }
  for (const CommittedToken& token : committed) {
    const Sampled& sampled = drawn[static_cast<std::size_t>(token.row)];
    Choice& choice = choices_.at(token.sequence);
    LiveRequest& live = *choice.live;
    live.last_token_s = now_s;
    if (!live.first_token_s) live.first_token_s = now_s;
    if (live.choices_added < live.request.n) add_choices(live, live.choices_added, live.request.n);
    ++live.usage.completion_tokens;
    Output output;
    output.request = live.key;
    output.index = choice.index;
    output.token_ids.push_back(token.token);
    if (sampled.logprob) output.logprobs.push_back(*sampled.logprob);
    if (!token.finish) {
      outputs_.push_back(std::move(output));
      continue;
    }
    output.finish = token.finish;
    states_.move(choice.clock, SequenceState::kFinished, now_s);
    choices_.erase(token.sequence);
    end_choice(live, std::move(output));
  }
}

// Sends the last output of a choice; the last choice ends the request.
void Engine::end_choice(LiveRequest& live, Output output) {
  if (--live.choices_left > 0) {
    outputs_.push_back(std::move(output));
    return;
  }
  output.final = true;
  output.usage = live.usage;
  output.timing = live.timing(monotonic_s());
  count_outcome(output.error ? status_code_name(output.error->code()) : finish_reason_name(output.finish->reason));
  outputs_.push_back(std::move(output));
  if (!live.admitted_s) inbox_.leave_queue(live.usage.prompt_tokens);
  waiting_since_.erase({live.submitted_s, live.key});
  for (const Expiry& expiry : live.expiries) expiries_.remove(expiry);
  inbox_.forget(live.request.id, live.key);
  requests_.erase(live.key);
}

// Ends all choices that are still there. `live` is gone afterwards.
void Engine::end_request(LiveRequest& live, const std::variant<FinishReason, Status>& how) {
  const std::vector<SequenceId> sequences = live.sequences;
  const double now_s = monotonic_s();
  for (const SequenceId id : sequences) {
    const auto found = choices_.find(id);
    if (found == choices_.end()) continue;
    Output output;
    output.request = live.key;
    output.index = found->second.index;
    states_.move(found->second.clock, SequenceState::kFinished, now_s);
    choices_.erase(found);
    if (!failed_) drop_sequence(id);  // after a failure the scheduler's state proves nothing and is left alone
    if (const FinishReason* reason = std::get_if<FinishReason>(&how)) {
      output.finish = Finish{*reason, std::nullopt, false};
    } else {
      output.error = std::get<Status>(how);
    }
    end_choice(live, std::move(output));
  }
}

void Engine::drop_sequence(SequenceId id) {
  // Choices that wait for the first one's first token are not there yet.
  if (scheduler_.remove(id) && trace_) trace_->remove(id);
}

// Also ends what is still in the inbox, so that no accepted request is left without its final output.
void Engine::end_everything(const std::variant<FinishReason, Status>& how) {
  begin_batch();
  inbox_.drain(batch_);
  begin_batch();
  while (!requests_.empty()) end_request(*requests_.begin()->second, how);
  busy_ = false;
  if (trace_) trace_->flush();  // who reads the last output finds all of it in the file
  send();
}

// The statistics first: who has read an output finds its consequences in stats().
void Engine::send() {
  sample_scheduler(0);
  outbox_.push(outputs_);
}

// The same in the middle of a turn, in which nothing may wait: what finds no room is sent at its end.
void Engine::tell() {
  sample_scheduler(0);
  outbox_.offer(outputs_);
}

void Engine::sample_scheduler(int planned_tokens) {
  const SchedulerStats scheduler = scheduler_.stats();
  Scheduler::Slots slots = scheduler_.slots();
  slots.filled += planned_tokens;
  const std::lock_guard lock(stats_mutex_);
  // After a failure the scheduler still has what was taken from the engine.
  stats_.running = failed_ ? 0 : scheduler.running;
  stats_.waiting = failed_ ? 0 : scheduler.waiting;
  stats_.preemptions = scheduler.preemptions;
  stats_.recomputed_tokens = scheduler.recomputed_tokens;
  stats_.prefix_queries = scheduler.prefix_queries;
  stats_.prefix_hits = scheduler.prefix_hits;
  stats_.copied_prefix_tokens = scheduler.copied_tokens;
  stats_.swap_outs = scheduler.swap_outs;
  stats_.swap_ins = scheduler.swap_ins;
  stats_.swapped_out_blocks = scheduler.swapped_out_blocks;
  stats_.swapped_in_blocks = scheduler.swapped_in_blocks;
  stats_.swap_bytes_per_second = memory_.swap_bytes_per_second();
  stats_.step_seconds_per_token = step_cost_.seconds_per_token().value_or(0.0);
  stats_.states = states_.by_name();
  stats_.utilization = slots.held == 0 ? 0.0 : static_cast<double>(slots.filled) / static_cast<double>(slots.held);
  oldest_waiting_since_s_ = waiting_since_.empty() ? std::nullopt : std::optional(waiting_since_.begin()->first);
  stats_.kv_blocks_held = scheduler_.pool().held_count();
  stats_.kv_blocks_cached = scheduler_.pool().cached_count();
  if (scheduler_.swap_pool() != nullptr) stats_.swap_blocks_held = scheduler_.swap_pool()->held_count();
}

void Engine::update_stats(const StepPlan& plan) {
  last_progress_s_ = monotonic_s();
  busy_ = !plan.empty() || !launched_.empty();
  sample_scheduler(plan.token_count);
  if (plan.empty()) return;
  const std::lock_guard lock(stats_mutex_);
  ++stats_.steps;
  for (const PlannedRange& range : plan.ranges) {
    const int prompt_end = scheduler_.sequence(range.sequence).prompt_count();
    const int prompt_tokens = std::min(range.first_position + range.token_count, prompt_end) - range.first_position;
    stats_.prompt_tokens += static_cast<std::uint64_t>(std::max(0, prompt_tokens));
  }
}

void Engine::count_outcome(const std::string& outcome) {
  const std::lock_guard lock(stats_mutex_);
  ++stats_.requests[outcome];
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(stats_mutex_);
  EngineStats sample = stats_;
  if (busy_) sample.seconds_since_progress = monotonic_s() - last_progress_s_;
  const auto drops = sample.requests.find(status_code_name(StatusCode::kDeadlineExceeded));
  if (drops != sample.requests.end()) sample.deadline_drops = drops->second;
  if (oldest_waiting_since_s_) sample.oldest_wait_s = monotonic_s() - *oldest_waiting_since_s_;
  return sample;
}

}  // namespace llmsrv
