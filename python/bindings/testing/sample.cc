// The sampler on logits from NumPy.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>

#include "cpp/base/counter_rng.h"
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
};

TestRow make_row(float temperature, float top_p, int top_k, float min_p, float frequency_penalty,
                 float presence_penalty, float repetition_penalty, const std::map<TokenId, float>& logit_bias,
                 std::vector<TokenId> allowed_token_ids, std::vector<TokenId> prompt, std::vector<TokenId> output,
                 std::vector<TokenId> forbidden, std::uint64_t seed, std::uint32_t choice,
                 std::optional<int> top_logprobs) {
  SamplingParams params{temperature,
                        top_p,
                        top_k,
                        min_p,
                        frequency_penalty,
                        presence_penalty,
                        repetition_penalty,
                        {logit_bias.begin(), logit_bias.end()},
                        std::move(allowed_token_ids)};
  return {std::move(params), std::move(prompt), std::move(output), std::move(forbidden), seed, choice, top_logprobs};
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
py::list sample(const FloatArray& logits, const std::vector<TestRow>& rows, int threads) {
  const int vocab = static_cast<int>(logits.shape(1));
  ThreadPool pool(threads);
  Sampler sampler(vocab, static_cast<int>(rows.size()), pool);
  std::vector<SampleRow> core_rows;
  for (const TestRow& row : rows) {
    core_rows.push_back({&row.params, row.prompt, row.output, row.forbidden, row.seed, row.choice, row.top_logprobs});
  }
  auto* data = const_cast<float*>(logits.data());  // the view type has no const form; the sampler only reads
  py::list result;
  for (const Sampled& sampled :
       sampler.sample(TensorView::f32(data, static_cast<int>(logits.shape(0)), vocab), core_rows)) {
    result.append(
        py::make_tuple(sampled.token, sampled.logprob ? logprob_dict(*sampled.logprob) : py::none(), sampled.finite));
  }
  return result;
}

}  // namespace

void register_sample(py::module_& module) {
  py::class_<TestRow>(module, "SampleRow")
      .def(py::init(&make_row), py::kw_only(), py::arg("temperature") = 1.0f, py::arg("top_p") = 1.0f,
           py::arg("top_k") = 0, py::arg("min_p") = 0.0f, py::arg("frequency_penalty") = 0.0f,
           py::arg("presence_penalty") = 0.0f, py::arg("repetition_penalty") = 1.0f,
           py::arg("logit_bias") = std::map<TokenId, float>(), py::arg("allowed_token_ids") = std::vector<TokenId>(),
           py::arg("prompt") = std::vector<TokenId>(), py::arg("output") = std::vector<TokenId>(),
           py::arg("forbidden") = std::vector<TokenId>(), py::arg("seed") = 0, py::arg("choice") = 0,
           py::arg("top_logprobs") = std::nullopt);
  module.def("sample", &sample, py::arg("logits"), py::arg("rows"), py::kw_only(), py::arg("threads") = 1);
  module.def("counter_uniform", &counter_uniform, py::arg("seed"), py::arg("choice"), py::arg("position"));
  module.def("token_logprob", [](const FloatArray& logits, TokenId token, int top_count) {
    return logprob_dict(token_logprob({logits.data(), static_cast<std::size_t>(logits.size())}, token, top_count));
  });
}

}  // namespace llmsrv::testing
