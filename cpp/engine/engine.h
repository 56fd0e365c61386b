// One model on one device, serving many requests: owns the engine thread, whose loop is step(). Several engines may
// share one team of compute threads, which each of them has for a step at a time.
//
// With a device that works behind its caller, a step is planned and launched while the device is at the one before;
// then that one's tokens are collected. So the device never waits for what the host does.
//
// Thread rule: public methods may be called from any thread; everything else is the engine thread's. Outside events
// enter through the inbox and are applied at one point of a step; results leave through the outbox. Invariants: every
// accepted request gets exactly one final output (promise P2); after a failure the engine never steps again, and every
// live and later request is told so.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "cpp/base/thread_pool.h"
#include "cpp/engine/backends.h"
#include "cpp/engine/config.h"
#include "cpp/engine/expiry.h"
#include "cpp/engine/inbox.h"
#include "cpp/engine/kv_memory.h"
#include "cpp/engine/launched_step.h"
#include "cpp/engine/live_request.h"
#include "cpp/engine/memory_plan.h"
#include "cpp/engine/outbox.h"
#include "cpp/engine/state_times.h"
#include "cpp/engine/stats.h"
#include "cpp/engine/step_cost.h"
#include "cpp/engine/step_trace.h"
#include "cpp/engine/team.h"
#include "cpp/model/decoder.h"
#include "cpp/model/weights.h"
#include "cpp/ops/backend.h"
#include "cpp/sample/draw.h"
#include "cpp/sched/scheduler.h"

namespace llmsrv {

// Makes the device's operations. `pool` outlives the result.
using BackendFactory = std::function<std::unique_ptr<Backend>(ThreadPool& pool)>;

class Engine {
 public:
  // Takes all memory and starts the engine thread. Throws std::invalid_argument for missing weights, a config that does
  // not fit, too little memory, or an impossible device. The config says whether it is deterministic. REQUIRES: there
  // is a team
  Engine(std::shared_ptr<const Weights> weights, const EngineConfig& config, std::shared_ptr<Team> team,
         const DeviceOptions& device);
  // The same, on a backend of the caller's making.
  Engine(std::shared_ptr<const Weights> weights, const EngineConfig& config, std::shared_ptr<Team> team,
         const BackendFactory& make_backend);
  // Calls shutdown().
  ~Engine();

  // Accepts a request, or says now why not. Nothing has changed when it is refused.
  std::variant<RequestKey, Status> submit(Request request);
  std::vector<Violation> validate(const Request& request) const;

  // Ends a request at the next step. `reason`: kAborted, or kStop when its text reached a stop string.
  // False when it is not in flight.
  bool end(RequestKey key, FinishReason reason) { return inbox_.end(key, reason); }
  std::optional<RequestKey> find(const std::string& id) const { return inbox_.find(id); }
  // Requests that were accepted and do not run yet, now.
  int queued() const { return inbox_.queued(); }
  // Aborts everything in flight; the ids of what was.
  std::vector<std::string> abort_all();

  // Waits up to `timeout` for outputs and takes all of them; empty on time-out, or once it is shut down and drained.
  std::vector<Output> wait_outputs(std::chrono::milliseconds timeout) { return outbox_.take_all(timeout); }

  // Forgets all cached prefixes at the next step, and waits for it. How many blocks became free.
  int clear_prefix_cache();

  EngineStats stats() const;
  // Of recent steps, where the device was made to measure them.
  std::vector<StepTimes> step_times() const { return backend_->step_times(); }
  const MemoryPlan& plan() const { return plan_; }
  std::string device() const { return backend_->description(); }

  // Aborts everything, joins the engine thread. Outputs can still be taken; later submissions are UNAVAILABLE.
  // Idempotent.
  void shutdown();

 private:
  void run();
  void step();
  void apply_inbox();
  void clear_cache(std::promise<int>& answer);
  void end_expired();
  void look_at(LiveRequest& live, const Expiry& expiry, double now_s);
  void must_start(LiveRequest& live, double now_s);
  double least_prefill_s(int tokens) const;
  void expire_at(LiveRequest& live, ExpiryKind kind, double time_s);
  const StepPlan& plan_step();
  void rest();
  void launch(const StepPlan& plan);
  void collect();
  void begin_batch();
  void begin(Submission submission);
  void set_expiries(LiveRequest& live);
  void add_choices(LiveRequest& live, int first, int end);
  void note_plan(const StepPlan& plan);
  void note_first_admission(LiveRequest& live, const Sequence& sequence, double now_s);
  void report_prompt_logprobs(const StepPlan& plan);
  void report_prompt_range(const PlannedRange& range, int first_row, const Choice& choice);
  void draw(const StepPlan& plan);
  void fail_unusable(std::span<const PlannedRange> ranges, std::span<const Sampled> drawn);
  void publish(std::span<const CommittedToken> committed, std::span<const Sampled> drawn);
  void end_choice(LiveRequest& live, Output output);
  void end_request(LiveRequest& live, const std::variant<FinishReason, Status>& how);
  void drop_sequence(SequenceId id);
  void end_everything(const std::variant<FinishReason, Status>& how);
  void send();
  void tell();
  void update_stats(const StepPlan& plan);
  void sample_scheduler(int planned_tokens);
  void count_outcome(const std::string& outcome);

  // Constant after construction:
  const std::shared_ptr<const Weights> weights_;
  const EngineConfig config_;
  const std::uint64_t seed_;  // of requests that bring none

  const std::shared_ptr<Team> team_;
  std::unique_ptr<Backend> backend_;
  MemoryPlan plan_;
  KvMemory memory_;
  Decoder decoder_;
  const SchedulerLimits limits_;
  Scheduler scheduler_;
  std::optional<StepTrace> trace_;

  // Any thread:
  Inbox inbox_;
  Outbox outbox_;
  std::atomic<bool> stopping_{false};
  std::atomic<double> last_progress_s_{0.0};
  std::atomic<bool> busy_{false};
  mutable std::mutex stats_mutex_;
  EngineStats stats_;                             // guarded by stats_mutex_
  std::optional<double> oldest_waiting_since_s_;  // likewise
  std::mutex shutdown_mutex_;

  // Engine thread:
  std::unordered_map<RequestKey, std::unique_ptr<LiveRequest>> requests_;
  std::unordered_map<SequenceId, Choice> choices_;
  SequenceId next_sequence_ = 1;
  ExpiryQueue expiries_;
  std::set<std::pair<double, RequestKey>> waiting_since_;  // submission times of those that were never admitted
  StateTimes states_;
  StepCost step_cost_;
  std::vector<LaunchedStep> launched_;  // the older one first; two at most, and one between steps
  double collected_s_ = 0.0;            // when the tokens of the last collected one were there
  bool failed_ = false;
  InboxBatch batch_;
  StepInputs inputs_;
  std::vector<int> logits_rows_;
  std::vector<SampleRow> sample_rows_;
  std::vector<TokenId> drawn_tokens_;
  std::vector<Output> outputs_;

  std::thread thread_;  // last: starts when all else stands
};

}  // namespace llmsrv
