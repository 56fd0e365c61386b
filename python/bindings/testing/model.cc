// The decoder alone, without an engine: logits of every position of one sequence, computed in chunks of any size.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>

#include "cpp/base/prefault.h"
#include "cpp/engine/backends.h"
#include "cpp/model/decoder.h"
#include "cpp/model/rope.h"
#include "python/bindings/testing/lone_sequence.h"
#include "python/bindings/testing/testing.h"

namespace py = pybind11;

namespace llmsrv::testing {
namespace {

// The memory of a whole cache, as an engine takes it.
struct CacheMemory {
  CacheMemory(int layers, int blocks, std::size_t layer_block_bytes)
      : CacheMemory(KvCacheShape{layers, blocks, LoneSequence::kBlockSize, DType::kBf16, layer_block_bytes}) {}
  explicit CacheMemory(const KvCacheShape& shape)
      : cache(shape, std::make_unique<HostBuffer>(shape.bytes(), MemoryPlace::kDevice)) {
    take();
  }
  void take() { prefault.emplace(std::vector{std::span(cache.pages()->data(), cache.pages()->size())}); }
  void give_back() {
    prefault.reset();
    cache.pages()->give_back();
  }
  KvCache cache;
  std::optional<Prefault> prefault;
};

// One layer's memory, [blocks, bytes of a block]. It is the cache itself, not a copy.
py::array_t<std::uint8_t> layer_bytes(const py::object& self, int index) {
  const KvLayer layer = self.cast<const CacheMemory&>().cache.layer(index);
  const std::vector<py::ssize_t> shape{layer.blocks, static_cast<py::ssize_t>(layer.block_bytes)};
  return py::array_t<std::uint8_t>(shape, reinterpret_cast<std::uint8_t*>(layer.data), self);
}

void register_cache_memory(py::module_& module) {
  py::class_<CacheMemory>(module, "CacheMemory")
      .def(py::init<int, int, std::size_t>(), py::kw_only(), py::arg("layers"), py::arg("blocks"),
           py::arg("layer_block_bytes"))
      .def_property_readonly("layer_count", [](const CacheMemory& memory) { return memory.cache.layers().size(); })
      .def("layer", &layer_bytes, py::arg("index"))
      .def("give_back", &CacheMemory::give_back)
      .def("take", &CacheMemory::take);
}

// The same as an object, for logits of which not all fit into memory.
struct TeamedSequence {
  TeamedSequence(const Weights& weights, int context_len, int chunk, DType kv_dtype, int threads)
      : pool(threads), sequence(weights, context_len, chunk, kv_dtype, make_backend(pool, "")) {}

  ThreadPool pool;
  LoneSequence sequence;
};

void register_lone_sequence(py::module_& module) {
  py::class_<TeamedSequence>(module, "LoneSequence")
      .def(py::init(
               [](const Weights& weights, int context_len, int chunk, const std::string& kv_cache_dtype, int threads) {
                 const DType dtype = dtype_named(kv_cache_dtype).value();
                 return std::make_unique<TeamedSequence>(weights, context_len, chunk, dtype, threads);
               }),
           py::arg("weights"), py::kw_only(), py::arg("context_len"), py::arg("chunk"), py::arg("kv_cache_dtype"),
           py::arg("threads"), py::keep_alive<1, 2>())
      .def(
          "extend",  // at most `chunk` tokens -> [tokens, vocab]
          [](TeamedSequence& teamed, const std::vector<TokenId>& tokens) {
            teamed.sequence.forward(tokens);
            const TensorView logits = teamed.sequence.logits();
            py::array_t<float> result({logits.rows, logits.cols});
            for (int row = 0; row < logits.rows; ++row) {
              std::memcpy(result.mutable_data(row, 0), logits.f32_row(row),
                          static_cast<std::size_t>(logits.cols) * sizeof(float));
            }
            return result;
          },
          py::arg("tokens"));
}

// [tokens, vocab]
py::array_t<float> forward_logits(const Weights& weights, const std::vector<TokenId>& tokens, int chunk,
                                  const std::string& kv_cache_dtype, int threads, const std::string& isa) {
  const DType dtype = dtype_named(kv_cache_dtype).value();
  const int count = static_cast<int>(tokens.size());
  const int vocab = weights.spec().vocab_size;
  ThreadPool pool(threads);
  LoneSequence sequence(weights, count, chunk, dtype, make_backend(pool, isa));
  py::array_t<float> result({count, vocab});
  for (int first = 0; first < count; first += chunk) {
    const int rows = std::min(chunk, count - first);
    sequence.forward(std::span(tokens).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(rows)));
    const TensorView logits = sequence.logits();
    for (int row = 0; row < rows; ++row) {
      std::memcpy(result.mutable_data(first + row, 0), logits.f32_row(row),
                  static_cast<std::size_t>(vocab) * sizeof(float));
    }
  }
  return result;
}

// Allocations of `steps` decode steps, sampling included, after a prompt and two steps to warm up.
long step_allocations(const Weights& weights, const std::vector<TokenId>& prompt, int steps,
                      const std::string& kv_cache_dtype) {
  constexpr int kWarmUpSteps = 2;
  const int count = static_cast<int>(prompt.size());
  ThreadPool pool(2);
  LoneSequence sequence(weights, count + kWarmUpSteps + steps, count, dtype_named(kv_cache_dtype).value(),
                        make_backend(pool, ""));
  SamplingParams params;
  params.top_k = 20;
  params.top_p = 0.9f;
  params.repetition_penalty = 1.1f;
  std::vector<SampleRow> rows(prompt.size());
  for (SampleRow& row : rows) row = {&params, prompt, {}, {}, 1, 0, std::nullopt, std::nullopt};
  sequence.forward(prompt);
  TokenId next = sequence.draw(rows).back().token;
  long before = 0;
  for (int step = 0; step < kWarmUpSteps + steps; ++step) {
    if (step == kWarmUpSteps) before = allocation_count();
    sequence.forward({&next, 1});
    next = sequence.draw(std::span(rows).first(1))[0].token;
  }
  return allocation_count() - before;
}

}  // namespace

void register_model(py::module_& module) {
  py::module_::import("llmsrv._core");  // its types are arguments here
  register_cache_memory(module);
  register_lone_sequence(module);
  module.def("forward_logits", &forward_logits, py::arg("weights"), py::arg("tokens"), py::kw_only(),
             py::arg("chunk") = 64, py::arg("kv_cache_dtype") = "float32", py::arg("threads") = 1, py::arg("isa") = "");
  module.def("step_allocations", &step_allocations, py::arg("weights"), py::arg("prompt"), py::kw_only(),
             py::arg("steps"), py::arg("kv_cache_dtype") = "bfloat16");
  module.def("rope_frequencies", &rope_frequencies, py::arg("spec"), py::arg("layer"));
}

}  // namespace llmsrv::testing
