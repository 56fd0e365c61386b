#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "cpp/engine/output.h"
#include "cpp/engine/stats.h"
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

  py::class_<StateStats>(module, "StateStats")
      .def_readonly("current", &StateStats::current)
      .def_readonly("entered", &StateStats::entered)
      .def_readonly("seconds", &StateStats::seconds);

  py::class_<EngineStats>(module, "EngineStats")
      .def_property_readonly("healthy", [](const EngineStats& stats) { return stats.failure.empty(); })
      .def_readonly("failure", &EngineStats::failure)
      .def_readonly("running", &EngineStats::running)
      .def_readonly("waiting", &EngineStats::waiting)
      .def_readonly("kv_blocks_total", &EngineStats::kv_blocks_total)
      .def_property_readonly("kv_blocks_free",
                             [](const EngineStats& stats) {
                               return stats.kv_blocks_total - stats.kv_blocks_held - stats.kv_blocks_cached;
                             })
      .def_readonly("kv_blocks_cached", &EngineStats::kv_blocks_cached)
      .def_readonly("kv_blocks_held", &EngineStats::kv_blocks_held)
      .def_readonly("swap_blocks_total", &EngineStats::swap_blocks_total)
      .def_readonly("swap_blocks_held", &EngineStats::swap_blocks_held)
      .def_readonly("utilization", &EngineStats::utilization)
      .def_readonly("oldest_wait_s", &EngineStats::oldest_wait_s)
      .def_readonly("states", &EngineStats::states)
      .def_readonly("steps", &EngineStats::steps)
      .def_readonly("prompt_tokens", &EngineStats::prompt_tokens)
      .def_readonly("generation_tokens", &EngineStats::generation_tokens)
      .def_readonly("recomputed_tokens", &EngineStats::recomputed_tokens)
      .def_readonly("preemptions", &EngineStats::preemptions)
      .def_readonly("swap_outs", &EngineStats::swap_outs)
      .def_readonly("swap_ins", &EngineStats::swap_ins)
      .def_readonly("swapped_out_blocks", &EngineStats::swapped_out_blocks)
      .def_readonly("swapped_in_blocks", &EngineStats::swapped_in_blocks)
      .def_readonly("swap_bytes_per_second", &EngineStats::swap_bytes_per_second)
      .def_readonly("step_seconds_per_token", &EngineStats::step_seconds_per_token)
      .def_readonly("prefix_queries", &EngineStats::prefix_queries)
      .def_readonly("prefix_hits", &EngineStats::prefix_hits)
      .def_readonly("copied_prefix_tokens", &EngineStats::copied_prefix_tokens)
      .def_readonly("deadline_drops", &EngineStats::deadline_drops)
      .def_readonly("seconds_since_progress", &EngineStats::seconds_since_progress)
      .def_readonly("requests", &EngineStats::requests);
}

}  // namespace llmsrv::bindings
