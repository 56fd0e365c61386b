// The real scheduler under a fake model on a simulated clock. A trace is replayed without Python in the loop; what is
// seen in each step and of each request is returned raw, and bench/engine/scheduler_sim.py makes figures of it.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "cpp/base/check.h"
#include "cpp/sched/scheduler.h"
#include "python/bindings/testing/testing.h"

namespace py = pybind11;

namespace llmsrv::testing {
namespace {

struct TraceRequest {
  double arrival_s = 0;
  int input_length = 0;
  int output_length = 0;
  // Names of the prompt's blocks of `hash_block_tokens` tokens, the last one perhaps cut short. Equal names mean equal
  // prompts up to there. Empty: nothing of the prompt is shared.
  std::vector<std::int64_t> hash_ids;
  Claim claim;
};

// What a step takes.
struct FakeModel {
  double step_s = 0;
  double token_s = 0;
  double swapped_block_s = 0;  // one way
};

struct Replay {
  std::vector<TraceRequest> requests;  // by arrival
  int hash_block_tokens = 0;
  FakeModel model;
  std::size_t max_steps = std::numeric_limits<std::size_t>::max();
};

// What each step showed.
struct StepRecords {
  std::vector<double> plan_us;
  std::vector<double> commit_us;
  std::vector<int> tokens;
  std::vector<int> running;
  std::vector<int> waiting;
  std::vector<std::int64_t> held_slots;    // token slots of held blocks, after commit()
  std::vector<std::int64_t> filled_slots;  // of these, with a computed token
};

// What each request saw, in order of arrival. One that was never admitted within max_steps has waited to the end.
struct RequestRecords {
  std::vector<double> queue_wait_s;
  std::vector<int> cached_tokens;
};

// Tokens are scrambled numbers (the finalizer of MurmurHash3), so that equal ones mean equal numbers.
enum class TokenKind : std::uint64_t { kNamed = 0, kUnique = 1, kDrawn = 2 };

TokenId token_of(TokenKind kind, std::uint64_t number) {
  std::uint64_t bits = (static_cast<std::uint64_t>(kind) << 62) + number + 1;
  bits = (bits ^ (bits >> 33)) * 0xff51afd7ed558ccdull;
  bits = (bits ^ (bits >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return static_cast<TokenId>(bits >> 33);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Simulation {
 public:
  Simulation(const SchedulerLimits& limits, Replay replay) : replay_(std::move(replay)), scheduler_(limits) {
    scheduler_.set_costs({replay_.model.swapped_block_s, replay_.model.token_s});
    seen_.queue_wait_s.assign(replay_.requests.size(), 0);
    seen_.cached_tokens.assign(replay_.requests.size(), 0);
    admitted_.assign(replay_.requests.size(), false);
  }

  void run() {
    const auto start = std::chrono::steady_clock::now();
    while (steps_.tokens.size() < replay_.max_steps) {
      add_arrivals();
      if (scheduler_.idle()) {
        if (arrived_ == replay_.requests.size()) break;
        clock_s_ = replay_.requests[arrived_].arrival_s;
        continue;
      }
      step();
    }
    for (std::size_t i = 0; i < arrived_; ++i) {
      if (!admitted_[i]) seen_.queue_wait_s[i] = clock_s_ - replay_.requests[i].arrival_s;
    }
    wall_s_ = seconds_since(start);
  }

  py::dict results() const {
    const auto array = [](const auto& values) { return py::array(py::cast(values)); };
    const SchedulerStats stats = scheduler_.stats();
    py::dict result;
    result["plan_us"] = array(steps_.plan_us);
    result["commit_us"] = array(steps_.commit_us);
    result["tokens"] = array(steps_.tokens);
    result["running"] = array(steps_.running);
    result["waiting"] = array(steps_.waiting);
    result["held_slots"] = array(steps_.held_slots);
    result["filled_slots"] = array(steps_.filled_slots);
    result["queue_wait_s"] = array(seen_.queue_wait_s);
    result["cached_tokens"] = array(seen_.cached_tokens);
    result["preemptions"] = stats.preemptions;
    result["swap_outs"] = stats.swap_outs;
    result["recomputed_tokens"] = stats.recomputed_tokens;
    result["simulated_s"] = clock_s_;
    result["wall_s"] = wall_s_;
    return result;
  }

 private:
  std::size_t index_of(SequenceId id) const { return static_cast<std::size_t>(id - 1); }

  void add_arrivals() {
    while (arrived_ < replay_.requests.size() && replay_.requests[arrived_].arrival_s <= clock_s_) {
      const std::size_t index = arrived_++;
      StopRules rules;
      rules.max_tokens = replay_.requests[index].output_length;
      scheduler_.add(std::make_unique<Sequence>(SequenceId{index + 1}, prompt_of(index), std::move(rules), CacheRules{},
                                                replay_.requests[index].claim));
    }
  }

  std::shared_ptr<const std::vector<TokenId>> prompt_of(std::size_t index) const {
    const TraceRequest& request = replay_.requests[index];
    auto prompt = std::make_shared<std::vector<TokenId>>();
    prompt->reserve(static_cast<std::size_t>(request.input_length));
    const auto place = [](std::uint64_t run, int offset) { return (run << 24) + static_cast<std::uint64_t>(offset); };
    for (int position = 0; position < request.input_length; ++position) {
      if (request.hash_ids.empty()) {
        prompt->push_back(token_of(TokenKind::kUnique, place(index, position)));
      } else {
        const auto run = request.hash_ids[static_cast<std::size_t>(position / replay_.hash_block_tokens)];
        const int offset = position % replay_.hash_block_tokens;
        prompt->push_back(token_of(TokenKind::kNamed, place(static_cast<std::uint64_t>(run), offset)));
      }
    }
    return prompt;
  }

  void step() {
    const auto planning = std::chrono::steady_clock::now();
    const StepPlan& plan = scheduler_.plan();
    steps_.plan_us.push_back(seconds_since(planning) * 1e6);
    LLMSRV_CHECK(!plan.empty());
    note_plan(plan);

    drawn_.clear();
    for (const PlannedRange& range : plan.ranges) {
      if (range.samples) drawn_.push_back(token_of(TokenKind::kDrawn, draws_++));
    }
    clock_s_ += step_s(plan);

    const auto committing = std::chrono::steady_clock::now();
    scheduler_.commit(drawn_);
    steps_.commit_us.push_back(seconds_since(committing) * 1e6);
    const Scheduler::Slots slots = scheduler_.slots();
    steps_.held_slots.push_back(slots.held);
    steps_.filled_slots.push_back(slots.filled);
  }

  double step_s(const StepPlan& plan) const {
    const auto swapped = static_cast<double>(plan.swap_outs.size() + plan.swap_ins.size());
    return replay_.model.step_s + replay_.model.token_s * plan.token_count + replay_.model.swapped_block_s * swapped;
  }

  void note_plan(const StepPlan& plan) {
    for (const SequenceId id : plan.admitted) {
      const Sequence& sequence = scheduler_.sequence(id);
      const std::size_t index = index_of(id);
      if (admitted_[index]) continue;
      admitted_[index] = true;
      seen_.queue_wait_s[index] = clock_s_ - replay_.requests[index].arrival_s;
      seen_.cached_tokens[index] = sequence.cached_prompt_count();
    }
    const SchedulerStats stats = scheduler_.stats();
    steps_.tokens.push_back(plan.token_count);
    steps_.running.push_back(stats.running);
    steps_.waiting.push_back(stats.waiting);
  }

  const Replay replay_;
  Scheduler scheduler_;
  double clock_s_ = 0;
  double wall_s_ = 0;
  std::size_t arrived_ = 0;  // requests that were added
  std::uint64_t draws_ = 0;
  std::vector<bool> admitted_;  // by request
  std::vector<TokenId> drawn_;
  StepRecords steps_;
  RequestRecords seen_;
};

using RequestTuple = std::tuple<double, int, int, std::vector<std::int64_t>, int, std::string>;

py::dict simulate(const SchedulerLimits& limits, const std::vector<RequestTuple>& requests, int hash_block_tokens,
                  const FakeModel& model, std::optional<std::size_t> max_steps) {
  Replay replay;
  for (const auto& [arrival_s, input_length, output_length, hash_ids, priority, tenant] : requests) {
    replay.requests.push_back({arrival_s, input_length, output_length, hash_ids, {priority, tenant}});
  }
  replay.hash_block_tokens = hash_block_tokens;
  replay.model = model;
  if (max_steps) replay.max_steps = *max_steps;
  Simulation simulation(limits, std::move(replay));
  {
    const py::gil_scoped_release unlocked;
    simulation.run();
  }
  return simulation.results();
}

void register_limits(py::module_& module) {
  py::enum_<EvictionOrder>(module, "EvictionOrder")
      .value("lru", EvictionOrder::kLru)
      .value("once-first", EvictionOrder::kOnceFirst);
  py::enum_<PreemptionMode>(module, "PreemptionMode")
      .value("auto", PreemptionMode::kAuto)
      .value("swap", PreemptionMode::kSwap)
      .value("recompute", PreemptionMode::kRecompute);
  py::enum_<SchedulingPolicy>(module, "SchedulingPolicy")
      .value("fcfs", SchedulingPolicy::kFcfs)
      .value("priority", SchedulingPolicy::kPriority)
      .value("fair", SchedulingPolicy::kFair);
  py::class_<SchedulerLimits>(module, "SchedulerLimits")
      .def(py::init<>())
      .def_readwrite("block_size", &SchedulerLimits::block_size)
      .def_readwrite("blocks", &SchedulerLimits::blocks)
      .def_readwrite("swap_blocks", &SchedulerLimits::swap_blocks)
      .def_readwrite("max_sequences", &SchedulerLimits::max_sequences)
      .def_readwrite("max_step_tokens", &SchedulerLimits::max_step_tokens)
      .def_readwrite("prefix_cache", &SchedulerLimits::prefix_cache)
      .def_readwrite("eviction", &SchedulerLimits::eviction)
      .def_readwrite("preemption", &SchedulerLimits::preemption)
      .def_readwrite("policy", &SchedulerLimits::policy);
}

}  // namespace

void register_scheduler_sim(py::module_& module) {
  register_limits(module);
  py::class_<FakeModel>(module, "FakeModel")
      .def(py::init([](double step_s, double token_s, double swapped_block_s) {
             return FakeModel{step_s, token_s, swapped_block_s};
           }),
           py::kw_only(), py::arg("step_s"), py::arg("token_s"), py::arg("swapped_block_s"));
  module.def("simulate_scheduler", &simulate, py::arg("limits"), py::arg("requests"), py::kw_only(),
             py::arg("hash_block_tokens"), py::arg("model"), py::arg("max_steps") = py::none());
}

}  // namespace llmsrv::testing
