#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>

#include "cpp/engine/request.h"
#include "python/bindings/bindings.h"

namespace py = pybind11;

namespace llmsrv::bindings {
namespace {

// Python's SamplingParams holds what a client says about drawing: the core keeps seed and n beside it.
struct PySamplingParams {
  SamplingParams params;
  std::optional<std::uint64_t> seed;
  int n = 1;
};

struct PyRequest {
  std::string id;
  std::vector<TokenId> prompt;
  PySamplingParams sampling;
  StoppingParams stopping;
  OutputOptions output;
  std::string cache_salt;
  bool bypass_prefix_cache = false;
  int priority = 0;
  std::string tenant;
  std::optional<double> queue_timeout_s;
  std::optional<double> deadline_s;
};

void register_sampling(py::module_& module) {
  using Bias = std::map<TokenId, float>;
  const auto field = [](auto member) {
    return std::pair([member](const PySamplingParams& self) { return self.params.*member; },
                     [member](PySamplingParams& self, std::decay_t<decltype(self.params.*member)> value) {
                       self.params.*member = std::move(value);
                     });
  };
  py::class_<PySamplingParams> sampling(module, "SamplingParams");
  sampling.def(py::init<>());
  const auto bind = [&](const char* name, auto member) {
    const auto [get, set] = field(member);
    sampling.def_property(name, get, set);
  };
  bind("temperature", &SamplingParams::temperature);
  bind("top_p", &SamplingParams::top_p);
  bind("top_k", &SamplingParams::top_k);
  bind("min_p", &SamplingParams::min_p);
  bind("frequency_penalty", &SamplingParams::frequency_penalty);
  bind("presence_penalty", &SamplingParams::presence_penalty);
  bind("repetition_penalty", &SamplingParams::repetition_penalty);
  bind("allowed_token_ids", &SamplingParams::allowed_token_ids);
  sampling
      .def_property(
          "logit_bias",
          [](const PySamplingParams& self) {
            return Bias(self.params.logit_bias.begin(), self.params.logit_bias.end());
          },
          [](PySamplingParams& self, const Bias& bias) { self.params.logit_bias.assign(bias.begin(), bias.end()); })
      .def_readwrite("seed", &PySamplingParams::seed)
      .def_readwrite("n", &PySamplingParams::n);
}

}  // namespace

Request to_request(const py::handle& object) {
  const auto& source = object.cast<const PyRequest&>();
  Request request;
  request.id = source.id;
  request.prompt = source.prompt;
  request.sampling = source.sampling.params;
  request.seed = source.sampling.seed;
  request.n = source.sampling.n;
  request.stopping = source.stopping;
  request.output = source.output;
  request.cache_salt = source.cache_salt;
  request.bypass_prefix_cache = source.bypass_prefix_cache;
  request.priority = source.priority;
  request.tenant = source.tenant;
  request.queue_timeout_s = source.queue_timeout_s;
  request.deadline_s = source.deadline_s;
  return request;
}

void register_request(py::module_& module) {
  register_sampling(module);

  py::class_<StoppingParams>(module, "StoppingParams")
      .def(py::init<>())
      .def_readwrite("max_tokens", &StoppingParams::max_tokens)
      .def_readwrite("min_tokens", &StoppingParams::min_tokens)
      .def_readwrite("stop_token_ids", &StoppingParams::stop_token_ids)
      .def_readwrite("stop_strings", &StoppingParams::stop_strings)
      .def_readwrite("ignore_eos", &StoppingParams::ignore_eos)
      .def_readwrite("time_limit_s", &StoppingParams::time_limit_s);

  py::class_<OutputOptions>(module, "OutputOptions")
      .def(py::init<>())
      .def_readwrite("logprobs", &OutputOptions::logprobs)
      .def_readwrite("top_logprobs", &OutputOptions::top_logprobs)
      .def_readwrite("prompt_logprobs", &OutputOptions::prompt_logprobs);

  py::class_<PyRequest>(module, "Request")
      .def(py::init<>())
      .def_readwrite("id", &PyRequest::id)
      .def_readwrite("prompt", &PyRequest::prompt)
      .def_readwrite("sampling", &PyRequest::sampling)
      .def_readwrite("stopping", &PyRequest::stopping)
      .def_readwrite("output", &PyRequest::output)
      .def_readwrite("cache_salt", &PyRequest::cache_salt)
      .def_readwrite("bypass_prefix_cache", &PyRequest::bypass_prefix_cache)
      .def_readwrite("priority", &PyRequest::priority)
      .def_readwrite("tenant", &PyRequest::tenant)
      .def_readwrite("queue_timeout_s", &PyRequest::queue_timeout_s)
      .def_readwrite("deadline_s", &PyRequest::deadline_s);
}

}  // namespace llmsrv::bindings
