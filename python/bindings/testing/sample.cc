// The sampler, and draws of a backend, on logits from NumPy.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>

#include "cpp/base/check.h"
#include "cpp/base/counter_rng.h"
#include "cpp/cpu/cpu_backend.h"
#include "cpp/cuda/cuda_backend.h"
#include "cpp/sample/logprobs.h"
#include "cpp/sample/sampler.h"
#include "python/bindings/testing/testing.h"

namespace py = pybind11;

namespace llmsrv::testing {
namespace {

using FloatArray = py::array_t<float, py::array::c_style | py::array::forcecast>;

struct TestRow {
  SamplingParams params;
  std::vector<TokenId> prompt;
  std::vector<TokenId> output;
  std::vector<TokenId> forbidden;
  std::uint64_t seed;
  std::uint32_t choice;
  std::optional<int> top_logprobs;
  std::optional<int> pending;

  SampleRow row() const { return {&params, prompt, output, forbidden, seed, choice, top_logprobs, pending}; }
};

TestRow make_row(float temperature, float top_p, int top_k, float min_p, float frequency_penalty,
                 float presence_penalty, float repetition_penalty, const std::map<TokenId, float>& logit_bias,
                 std::vector<TokenId> allowed_token_ids, std::vector<TokenId> prompt, std::vector<TokenId> output,
                 std::vector<TokenId> forbidden, std::uint64_t seed, std::uint32_t choice,
                 std::optional<int> top_logprobs, std::optional<int> pending) {
  SamplingParams params{temperature,
                        top_p,
                        top_k,
                        min_p,
                        frequency_penalty,
                        presence_penalty,
                        repetition_penalty,
                        {logit_bias.begin(), logit_bias.end()},
                        std::move(allowed_token_ids)};
  return {std::move(params),
          std::move(prompt),
          std::move(output),
          std::move(forbidden),
          seed,
          choice,
          top_logprobs,
          pending};
}

py::object logprob_dict(const TokenLogprob& logprob) {
  py::dict result;
  result["token"] = logprob.token;
  result["logprob"] = logprob.logprob;
  result["rank"] = logprob.rank;
  result["top"] = logprob.top;
  return result;
}

// One (token, log-probability or None, finite) per row.
py::list results_list(std::span<const Sampled> results) {
  py::list list;
  for (const Sampled& sampled : results) {
    list.append(
        py::make_tuple(sampled.token, sampled.logprob ? logprob_dict(*sampled.logprob) : py::none(), sampled.finite));
  }
  return list;
}

// As results_list().
py::list sample(const FloatArray& logits, const std::vector<TestRow>& rows, int threads) {
  const int vocab = static_cast<int>(logits.shape(1));
  ThreadPool pool(threads);
  Sampler sampler(vocab, static_cast<int>(rows.size()), pool);
  std::vector<SampleRow> core_rows;
  for (const TestRow& row : rows) core_rows.push_back(row.row());
  auto* data = const_cast<float*>(logits.data());  // the view type has no const form; the sampler only reads
  sampler.sample(TensorView::f32(data, static_cast<int>(logits.shape(0)), vocab), core_rows);
  return results_list(sampler.take());
}

// A backend that draws: the CPU's, or the CUDA backend over the table of the emulated device, whose memory is the
// host's.
class Drawer {
 public:
  Drawer(int rows, int vocab, int context_len, int top_logprobs, const std::optional<py::capsule>& plugin)
      : pool_(2), vocab_(vocab) {
    backend_ = plugin ? make_cuda_backend(*plugin->get_pointer<const PluginTable>(), {.inner_dtype = DType::kF32})
                      : make_cpu_backend(pool_, "");
    const StepLimits limits{.tokens = rows,
                            .sequences = rows,
                            .context_len = context_len,
                            .input_cols = 32,
                            .shape = {1, 1, 32},
                            .result_rows = rows,
                            .result_cols = vocab,
                            .top_logprobs = top_logprobs};
    backend_->reserve(limits);
    workspace_bytes_ = backend_->workspace_bytes(limits);
    const std::size_t bytes = static_cast<std::size_t>(rows) * static_cast<std::size_t>(vocab) * sizeof(float);
    for (auto& logits : logits_) logits = backend_->allocate(bytes, MemoryPlace::kDevice);
  }

  void draw(const FloatArray& logits, const std::vector<TestRow>& rows) {
    std::vector<SampleRow> core_rows;
    for (const TestRow& row : rows) core_rows.push_back(row.row());
    Buffer& memory = *logits_[draws_++ % logits_.size()];  // nobody reads what the draw before the last one did
    const auto bytes = static_cast<std::size_t>(logits.nbytes());
    LLMSRV_CHECK(bytes <= memory.size() && logits.shape(1) == vocab_);
    std::memcpy(memory.data(), logits.data(), bytes);
    auto* values = reinterpret_cast<float*>(memory.data());
    backend_->draw(TensorView::f32(values, static_cast<int>(logits.shape(0)), vocab_), core_rows);
  }
  py::list drawn() { return results_list(backend_->drawn()); }
  std::size_t workspace_bytes() const { return workspace_bytes_; }  // as the plan of memory has it

 private:
  ThreadPool pool_;
  int vocab_;
  std::unique_ptr<Backend> backend_;
  std::size_t workspace_bytes_;
  std::array<std::unique_ptr<Buffer>, kDrawsMost + 1> logits_;
  std::size_t draws_ = 0;
};

}  // namespace

void register_sample(py::module_& module) {
  py::class_<TestRow>(module, "SampleRow")
      .def(py::init(&make_row), py::kw_only(), py::arg("temperature") = 1.0f, py::arg("top_p") = 1.0f,
           py::arg("top_k") = 0, py::arg("min_p") = 0.0f, py::arg("frequency_penalty") = 0.0f,
           py::arg("presence_penalty") = 0.0f, py::arg("repetition_penalty") = 1.0f,
           py::arg("logit_bias") = std::map<TokenId, float>(), py::arg("allowed_token_ids") = std::vector<TokenId>(),
           py::arg("prompt") = std::vector<TokenId>(), py::arg("output") = std::vector<TokenId>(),
           py::arg("forbidden") = std::vector<TokenId>(), py::arg("seed") = 0, py::arg("choice") = 0,
           py::arg("top_logprobs") = std::nullopt, py::arg("pending") = std::nullopt);
  py::class_<Drawer>(module, "Drawer")
      .def(py::init<int, int, int, int, const std::optional<py::capsule>&>(), py::kw_only(), py::arg("rows"),
           py::arg("vocab"), py::arg("context_len"), py::arg("top_logprobs"), py::arg("plugin") = std::nullopt)
      .def("draw", &Drawer::draw, py::arg("logits"), py::arg("rows"))
      .def("drawn", &Drawer::drawn)
      .def_property_readonly("workspace_bytes", &Drawer::workspace_bytes);
  module.def("sample", &sample, py::arg("logits"), py::arg("rows"), py::kw_only(), py::arg("threads") = 1);
  module.def("counter_uniform", &counter_uniform, py::arg("seed"), py::arg("choice"), py::arg("position"));
  module.def("token_logprob", [](const FloatArray& logits, TokenId token, int top_count) {
    return logprob_dict(token_logprob({logits.data(), static_cast<std::size_t>(logits.size())}, token, top_count));
  });
}

}  // namespace llmsrv::testing
