// The scheduler without a model: for the replay of recorded steps, and for the property-based tests.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>

#include "cpp/sched/scheduler.h"
#include "python/bindings/bindings.h"

namespace py = pybind11;

namespace llmsrv::bindings {
namespace {

std::vector<BlockId> block_ids(const BlockList& list) { return {list.data(), list.data() + list.size()}; }

py::list move_list(const std::vector<BlockMove>& moves) {
  py::list result;
  for (const BlockMove& move : moves) result.append(py::make_tuple(move.from, move.to));
  return result;
}

// The same names as in a recorded step.
py::dict plan_dict(const StepPlan& plan) {
  py::list ranges;
  for (const PlannedRange& range : plan.ranges) {
    ranges.append(py::make_tuple(range.sequence, range.first_position, range.token_count, range.samples));
  }
  py::dict result;
  result["ranges"] = ranges;
  result["token_count"] = plan.token_count;
  result["swap_outs"] = move_list(plan.swap_outs);
  result["copies"] = move_list(plan.copies);
  result["swap_ins"] = move_list(plan.swap_ins);
  result["admitted"] = plan.admitted;
  result["resumed"] = plan.resumed;
  result["preempted"] = plan.preempted;
  result["swapped"] = plan.swapped;
  return result;
}

py::list commit(Scheduler& scheduler, const std::vector<TokenId>& tokens) {
  py::list result;
  for (const CommittedToken& committed : scheduler.commit(tokens)) {
    py::object reason = committed.finish ? py::cast(finish_reason_name(committed.finish->reason)) : py::none();
    result.append(py::make_tuple(committed.sequence, committed.row, committed.token, reason));
  }
  return result;
}

void add(Scheduler& scheduler, SequenceId id, std::vector<TokenId> prompt, int max_tokens, int min_tokens,
         std::vector<TokenId> stop_token_ids, std::vector<TokenId> eos_token_ids, const std::string& salt, bool reads,
         bool fills, std::optional<SequenceId> sibling, int priority, const std::string& tenant) {
  StopRules rules{max_tokens, min_tokens, std::move(stop_token_ids), std::move(eos_token_ids)};
  scheduler.add(std::make_unique<Sequence>(id, std::make_shared<const std::vector<TokenId>>(std::move(prompt)),
                                           std::move(rules), CacheRules{salt, reads, fills, sibling},
                                           Claim{priority, tenant}));
}

std::unique_ptr<Scheduler> make_scheduler(int block_size, int blocks, int swap_blocks, int max_sequences,
                                          int max_step_tokens, bool prefix_cache, int prefix_hash_bits,
                                          const std::optional<HashKey>& prefix_hash_key, bool once_first,
                                          const std::string& preemption_mode, const std::string& scheduling_policy,
                                          const std::map<std::string, double>& tenant_weights) {
  SchedulerLimits limits;
  limits.block_size = block_size;
  limits.blocks = blocks;
  limits.swap_blocks = swap_blocks;
  limits.max_sequences = max_sequences;
  limits.max_step_tokens = max_step_tokens;
  limits.prefix_cache = prefix_cache;
  limits.prefix_hash_bits = prefix_hash_bits;
  if (prefix_hash_key) limits.prefix_hash_key = *prefix_hash_key;
  limits.eviction = once_first ? EvictionOrder::kOnceFirst : EvictionOrder::kLru;
  limits.preemption = parse_preemption_mode(preemption_mode);
  limits.policy = parse_scheduling_policy(scheduling_policy);
  limits.tenant_weights = tenant_weights;
  return std::make_unique<Scheduler>(limits);
}

void register_scheduler_stats(py::module_& module) {
  py::class_<SchedulerStats>(module, "SchedulerStats")
      .def_readonly("running", &SchedulerStats::running)
      .def_readonly("waiting", &SchedulerStats::waiting)
      .def_readonly("swapped", &SchedulerStats::swapped)
      .def_readonly("preemptions", &SchedulerStats::preemptions)
      .def_readonly("swap_outs", &SchedulerStats::swap_outs)
      .def_readonly("swap_ins", &SchedulerStats::swap_ins)
      .def_readonly("swapped_out_blocks", &SchedulerStats::swapped_out_blocks)
      .def_readonly("swapped_in_blocks", &SchedulerStats::swapped_in_blocks)
      .def_readonly("recomputed_tokens", &SchedulerStats::recomputed_tokens)
      .def_readonly("prefix_queries", &SchedulerStats::prefix_queries)
      .def_readonly("prefix_hits", &SchedulerStats::prefix_hits)
      .def_readonly("copied_tokens", &SchedulerStats::copied_tokens);
}

}  // namespace

void register_sched(py::module_& module) {
  register_scheduler_stats(module);
  py::class_<Scheduler>(module, "Scheduler")
      .def(py::init(&make_scheduler), py::kw_only(), py::arg("block_size"), py::arg("blocks"),
           py::arg("swap_blocks") = 0, py::arg("max_sequences"), py::arg("max_step_tokens"),
           py::arg("prefix_cache") = true, py::arg("prefix_hash_bits") = 128, py::arg("prefix_hash_key") = py::none(),
           py::arg("once_first") = true, py::arg("preemption_mode") = "auto", py::arg("scheduling_policy") = "fcfs",
           py::arg("tenant_weights") = std::map<std::string, double>())
      .def("add", &add, py::arg("id"), py::arg("prompt"), py::kw_only(), py::arg("max_tokens"),
           py::arg("min_tokens") = 0, py::arg("stop_token_ids") = std::vector<TokenId>(),
           py::arg("eos_token_ids") = std::vector<TokenId>(), py::arg("salt") = "", py::arg("reads") = true,
           py::arg("fills") = true, py::arg("sibling") = py::none(), py::arg("priority") = 0, py::arg("tenant") = "")
      .def("remove", &Scheduler::remove, py::arg("id"))
      .def("plan", [](Scheduler& self) { return plan_dict(self.plan()); })
      .def("commit", &commit, py::arg("tokens"))
      .def("audit", &Scheduler::audit)
      .def("clear_prefix_cache", &Scheduler::clear_prefix_cache)
      .def(
          "set_costs",
          [](Scheduler& self, double swap_s_per_block, double recompute_s_per_token) {
            self.set_costs({swap_s_per_block, recompute_s_per_token});
          },
          py::arg("swap_s_per_block"), py::arg("recompute_s_per_token"))
      .def("stats", &Scheduler::stats)
      .def("state", [](const Scheduler& self, SequenceId id) { return sequence_state_name(self.sequence(id).state()); })
      .def("cached_prompt_count",
           [](const Scheduler& self, SequenceId id) { return self.sequence(id).cached_prompt_count(); })
      .def("findable_prompt_tokens", &Scheduler::findable_prompt_tokens)
      .def("blocks", [](const Scheduler& self, SequenceId id) { return block_ids(self.sequence(id).blocks()); })
      .def("slots", [](const Scheduler& self) { return std::pair(self.slots().filled, self.slots().held); })
      .def_property_readonly("idle", &Scheduler::idle)
      .def_property_readonly("free_count", [](const Scheduler& self) { return self.pool().free_count(); })
      .def_property_readonly("cached_count", [](const Scheduler& self) { return self.pool().cached_count(); })
      .def_property_readonly("held_count", [](const Scheduler& self) { return self.pool().held_count(); })
      .def_property_readonly("swap_held_count", [](const Scheduler& self) {
        return self.swap_pool() != nullptr ? self.swap_pool()->held_count() : 0;
      });
}

}  // namespace llmsrv::bindings
