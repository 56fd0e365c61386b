#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "cpp/engine/output.h"
#include "python/bindings/bindings.h"

namespace py = pybind11;

namespace llmsrv::bindings {

void register_output(py::module_& module) {
  py::class_<TokenLogprob>(module, "TokenLogprob")
      .def_readonly("token_id", &TokenLogprob::token)
      .def_readonly("logprob", &TokenLogprob::logprob)
      .def_readonly("rank", &TokenLogprob::rank)
      .def_readonly("top", &TokenLogprob::top);

  py::class_<Finish>(module, "Finish")
      .def_property_readonly("reason", [](const Finish& finish) { return finish_reason_name(finish.reason); })
      .def_readonly("stop_token", &Finish::stop_token)
      .def_readonly("stopped_by_eos", &Finish::stopped_by_eos);

  py::class_<Usage>(module, "Usage")
      .def_readonly("prompt_tokens", &Usage::prompt_tokens)
      .def_readonly("completion_tokens", &Usage::completion_tokens)
      .def_readonly("cached_prompt_tokens", &Usage::cached_prompt_tokens);

  py::class_<Timing>(module, "Timing")
      .def_readonly("queue_s", &Timing::queue_s)
      .def_readonly("prefill_s", &Timing::prefill_s)
      .def_readonly("decode_s", &Timing::decode_s)
      .def_readonly("preemptions", &Timing::preemptions);

  py::class_<Output>(module, "Output")
      .def_readonly("request", &Output::request)
      .def_readonly("index", &Output::index)
      .def_readonly("token_ids", &Output::token_ids)
      .def_readonly("logprobs", &Output::logprobs)
      .def_readonly("prompt_logprobs", &Output::prompt_logprobs)
      .def_readonly("finish", &Output::finish)
      .def_property_readonly("error",
                             [](const Output& output) -> py::object {
                               return output.error ? make_status_error(*output.error) : py::none();
                             })
      .def_readonly("final", &Output::final)
      .def_readonly("usage", &Output::usage)
      .def_readonly("timing", &Output::timing);
}

}  // namespace llmsrv::bindings
