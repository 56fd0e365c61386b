// Block pool and prefix index for the property-based tests, and a scheduler with a policy of the caller's own.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <set>
#include <tuple>

#include "cpp/sched/block_pool.h"
#include "cpp/sched/prefix_index.h"
#include "cpp/sched/scheduler.h"
#include "python/bindings/testing/testing.h"

namespace py = pybind11;

namespace llmsrv::testing {
namespace {

std::vector<BlockId> block_ids(const BlockList& list) { return {list.data(), list.data() + list.size()}; }

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

// What a user may write: shorter prompts first, then by arrival.
class ShortestPromptFirst final : public Policy {
 public:
  bool before(const Sequence& a, const Sequence& b) const override { return rank(a) < rank(b); }
  void push(Sequence& sequence) override { waiting_.emplace(rank(sequence), &sequence); }
  void erase(Sequence& sequence) override { waiting_.erase({rank(sequence), &sequence}); }
  Sequence* next() const override { return waiting_.empty() ? nullptr : waiting_.begin()->second; }

 private:
  using Rank = std::tuple<int, SequenceId>;

  static Rank rank(const Sequence& sequence) { return {sequence.prompt_count(), sequence.id()}; }

  std::set<std::pair<Rank, Sequence*>> waiting_;
};

void register_own_policy(py::module_& module) {
  // The class Scheduler itself is the product's: import llmsrv._core first.
  module.def(
      "shortest_prompt_first_scheduler",
      [](int block_size, int blocks, int max_sequences, int max_step_tokens) {
        SchedulerLimits limits;
        limits.block_size = block_size;
        limits.blocks = blocks;
        limits.max_sequences = max_sequences;
        limits.max_step_tokens = max_step_tokens;
        return std::make_unique<Scheduler>(limits, std::make_unique<ShortestPromptFirst>());
      },
      py::kw_only(), py::arg("block_size"), py::arg("blocks"), py::arg("max_sequences"), py::arg("max_step_tokens"));
}

}  // namespace

void register_sched(py::module_& module) {
  register_blocks(module);
  register_own_policy(module);
}

}  // namespace llmsrv::testing
