#include "cpp/engine/stats.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "cpp/ops/backend.h"
#include "python/bindings/bindings.h"

namespace py = pybind11;

namespace llmsrv::bindings {

void register_engine_stats(py::module_& module) {
  py::class_<StateStats>(module, "StateStats")
      .def_readonly("current", &StateStats::current)
      .def_readonly("entered", &StateStats::entered)
      .def_readonly("seconds", &StateStats::seconds);

  py::class_<StepTimes>(module, "StepTimes")
      .def_readonly("device_s", &StepTimes::device_s)
      .def_readonly("gap_s", &StepTimes::gap_s)
      .def_readonly("host_s", &StepTimes::host_s);

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
