// Block pool and scheduler for the property-based tests.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>

#include "cpp/sched/block_pool.h"
#include "cpp/sched/scheduler.h"
#include "python/bindings/testing/testing.h"

namespace py = pybind11;

namespace llmsrv::testing {
namespace {

std::vector<BlockId> block_ids(const BlockList& list) { return {list.data(), list.data() + list.size()}; }

// A scheduler that names its sequences 1, 2, 3 ... in order of arrival, as the engine does.
class TestScheduler {
 public:
  explicit TestScheduler(const SchedulerLimits& limits) : scheduler_(limits) {}

  SequenceId add(std::vector<TokenId> prompt, int max_tokens, int min_tokens, std::vector<TokenId> stop_token_ids,
                 std::vector<TokenId> eos_token_ids, const std::string& salt, bool reads, bool fills) {
    StopRules rules{max_tokens, min_tokens, std::move(stop_token_ids), std::move(eos_token_ids)};
    const SequenceId id = next_id_++;
    scheduler_.add(std::make_unique<Sequence>(id, std::make_shared<const std::vector<TokenId>>(std::move(prompt)),
                                              std::move(rules), CacheRules{salt, reads, fills}));
    return id;
  }
  Scheduler& scheduler() { return scheduler_; }

 private:
  Scheduler scheduler_;
  SequenceId next_id_ = 1;
};

py::dict plan_dict(const StepPlan& plan) {
  py::list ranges;
  for (const PlannedRange& range : plan.ranges) {
    ranges.append(py::make_tuple(range.sequence, range.first_position, range.token_count, range.samples));
  }
  py::dict result;
  result["ranges"] = ranges;
  result["admitted"] = plan.admitted;
  result["preempted"] = plan.preempted;
  result["token_count"] = plan.token_count;
  return result;
}

py::list commit_list(TestScheduler& self, const std::vector<TokenId>& tokens) {
  py::list result;
  for (const CommittedToken& committed : self.scheduler().commit(tokens)) {
    py::object reason = committed.finish ? py::cast(finish_reason_name(committed.finish->reason)) : py::none();
    result.append(py::make_tuple(committed.sequence, committed.row, committed.token, reason));
  }
  return result;
}

void register_blocks(py::module_& module) {
  py::class_<BlockList>(module, "BlockList")
      .def("clear", &BlockList::clear)
      .def("append", [](BlockList& list, BlockList& more) { list.append(std::move(more)); })
      .def_property_readonly("ids", &block_ids);

  py::class_<PrefixIndex>(module, "PrefixIndex")
      .def(py::init([](int blocks, int block_size, int hash_bits) {
             return std::make_unique<PrefixIndex>(blocks, block_size, hash_bits, HashKey{1, 2});  // the same each time
           }),
           py::arg("blocks"), py::arg("block_size"), py::arg("hash_bits") = 128)
      .def(
          "find",
          [](const PrefixIndex& index, std::optional<ContentId> parent, const std::vector<TokenId>& tokens,
             const std::string& salt) { return index.find(parent, tokens, salt); },
          py::arg("parent"), py::arg("tokens"), py::arg("salt") = "")
      .def(
          "find_partial",
          [](const PrefixIndex& index, std::optional<ContentId> parent, const std::vector<TokenId>& tokens,
             const std::string& salt) {
            const std::optional<PartialMatch> match = index.find_partial(parent, tokens, salt);
            return match ? std::optional(std::pair(match->block, match->token_count)) : std::nullopt;
          },
          py::arg("parent"), py::arg("tokens"), py::arg("salt") = "")
      .def(
          "insert",
          [](PrefixIndex& index, std::optional<ContentId> parent, const std::vector<TokenId>& tokens,
             const std::string& salt, BlockId block) { return index.insert(parent, tokens, salt, block); },
          py::arg("parent"), py::arg("tokens"), py::arg("salt"), py::arg("block"))
      .def("holds", &PrefixIndex::holds)
      .def("content", &PrefixIndex::content)
      .def("erase", &PrefixIndex::erase)
      .def("bytes", &PrefixIndex::bytes)
      .def_property_readonly("size", &PrefixIndex::size);

  py::class_<BlockPool>(module, "BlockPool")
      .def(py::init<int, PrefixIndex*>(), py::arg("total"), py::arg("index") = nullptr, py::keep_alive<1, 3>())
      .def("take", &BlockPool::take, py::keep_alive<0, 1>())
      .def("audit", &BlockPool::audit)
      .def("bytes", &BlockPool::bytes)
      .def_property_readonly("total", &BlockPool::total)
      .def_property_readonly("free_count", &BlockPool::free_count)
      .def_property_readonly("cached_count", &BlockPool::cached_count)
      .def_property_readonly("held_count", &BlockPool::held_count);
}

void register_scheduler(py::module_& module) {
  py::class_<TestScheduler>(module, "Scheduler")
      .def(py::init([](int block_size, int blocks, int max_sequences, int max_step_tokens, bool prefix_cache,
                       int prefix_hash_bits, bool once_first) {
             return std::make_unique<TestScheduler>(
                 SchedulerLimits{block_size, blocks, max_sequences, max_step_tokens, prefix_cache, prefix_hash_bits,
                                 once_first ? EvictionOrder::kOnceFirst : EvictionOrder::kLru});
           }),
           py::kw_only(), py::arg("block_size"), py::arg("blocks"), py::arg("max_sequences"),
           py::arg("max_step_tokens"), py::arg("prefix_cache") = true, py::arg("prefix_hash_bits") = 128,
           py::arg("once_first") = true)
      .def("add", &TestScheduler::add, py::arg("prompt"), py::kw_only(), py::arg("max_tokens"),
           py::arg("min_tokens") = 0, py::arg("stop_token_ids") = std::vector<TokenId>(),
           py::arg("eos_token_ids") = std::vector<TokenId>(), py::arg("salt") = "", py::arg("reads") = true,
           py::arg("fills") = true)
      .def("remove", [](TestScheduler& self, SequenceId id) { return self.scheduler().remove(id); })
      .def("plan", [](TestScheduler& self) { return plan_dict(self.scheduler().plan()); })
      .def("commit", &commit_list)
      .def("audit", [](TestScheduler& self) { self.scheduler().audit(); })
      .def("clear_prefix_cache", [](TestScheduler& self) { return self.scheduler().clear_prefix_cache(); })
      .def("cached_prompt_count",
           [](TestScheduler& self, SequenceId id) { return self.scheduler().sequence(id).cached_prompt_count(); })
      .def("blocks",
           [](TestScheduler& self, SequenceId id) { return block_ids(self.scheduler().sequence(id).blocks()); })
      .def_property_readonly("idle", [](TestScheduler& self) { return self.scheduler().idle(); })
      .def_property_readonly("free_count", [](TestScheduler& self) { return self.scheduler().pool().free_count(); })
      .def_property_readonly("cached_count", [](TestScheduler& self) { return self.scheduler().pool().cached_count(); })
      .def_property_readonly("held_count", [](TestScheduler& self) { return self.scheduler().pool().held_count(); })
      .def_property_readonly("prefix_queries",
                             [](TestScheduler& self) { return self.scheduler().stats().prefix_queries; })
      .def_property_readonly("prefix_hits", [](TestScheduler& self) { return self.scheduler().stats().prefix_hits; })
      .def_property_readonly("running", [](TestScheduler& self) { return self.scheduler().stats().running; })
      .def_property_readonly("waiting", [](TestScheduler& self) { return self.scheduler().stats().waiting; })
      .def_property_readonly("preemptions", [](TestScheduler& self) { return self.scheduler().stats().preemptions; })
      .def_property_readonly("recomputed_tokens",
                             [](TestScheduler& self) { return self.scheduler().stats().recomputed_tokens; });
}

}  // namespace

void register_sched(py::module_& module) {
  register_blocks(module);
  register_scheduler(module);
}

}  // namespace llmsrv::testing
