#include "cpp/engine/engine.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "python/bindings/bindings.h"

namespace py = pybind11;

namespace llmsrv::bindings {

namespace {

RequestKey submit(Engine& engine, const py::handle& request) {
  std::variant<RequestKey, Status> result = engine.submit(to_request(request));
  if (const Status* refusal = std::get_if<Status>(&result)) throw StatusException(*refusal);
  return std::get<RequestKey>(result);
}

std::vector<std::pair<std::string, std::string>> validate(const Engine& engine, const py::handle& request) {
  std::vector<std::pair<std::string, std::string>> violations;
  for (Violation& violation : engine.validate(to_request(request))) {
    violations.emplace_back(std::move(violation.field), std::move(violation.description));
  }
  return violations;
}

bool abort_id(Engine& engine, const std::string& id) {
  const std::optional<RequestKey> key = engine.find(id);
  return key && engine.end(*key, FinishReason::kAborted);
}

}  // namespace

void register_engine(py::module_& module) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<Team, std::shared_ptr<Team>>(module, "Team")
      .def(py::init<int, std::vector<int>>(), release, py::arg("threads"), py::arg("processors") = std::vector<int>())
      .def_property_readonly("asking", &Team::asking);
  py::class_<Engine>(module, "Engine")
      .def(py::init([](std::shared_ptr<Weights> weights, const EngineConfig& config, std::shared_ptr<Team> team,
                       const std::string& isa, const std::string& device) {
             return std::make_unique<Engine>(std::move(weights), config, std::move(team),
                                             DeviceOptions{device_kind(device), isa});
           }),
           release, py::arg("weights").none(false), py::arg("config"), py::kw_only(), py::arg("team").none(false),
           py::arg("isa") = "", py::arg("device") = "cpu")
      .def(
          py::init([](std::shared_ptr<Weights> weights, const EngineConfig& config, int threads, const std::string& isa,
                      std::vector<int> processors, const std::string& device, bool times_steps) {
            auto team = std::make_shared<Team>(threads, std::move(processors));
            return std::make_unique<Engine>(std::move(weights), config, std::move(team),
                                            DeviceOptions{device_kind(device), isa, times_steps});
          }),
          release, py::arg("weights").none(false), py::arg("config"), py::kw_only(), py::arg("threads"),
          py::arg("isa") = "", py::arg("processors") = std::vector<int>(), py::arg("device") = "cpu",
          py::arg("times_steps") = false)
      .def("submit", &submit, py::arg("request"))
      .def("validate", &validate, py::arg("request"))
      .def(
          "abort", [](Engine& engine, RequestKey key) { return engine.end(key, FinishReason::kAborted); },
          py::arg("request"))
      .def(
          "stop", [](Engine& engine, RequestKey key) { return engine.end(key, FinishReason::kStop); },
          py::arg("request"))
      .def("abort_id", &abort_id, py::arg("request_id"))
      .def("abort_all", &Engine::abort_all)
      .def("clear_prefix_cache", &Engine::clear_prefix_cache, release)
      .def(
          "wait_outputs",
          [](Engine& engine, int timeout_ms) { return engine.wait_outputs(std::chrono::milliseconds(timeout_ms)); },
          release, py::arg("timeout_ms"))
      .def("stats", &Engine::stats)
      .def("step_times", &Engine::step_times)
      .def_property_readonly("queued", &Engine::queued)
      .def("shutdown", &Engine::shutdown, release)
      .def_property_readonly("plan", &Engine::plan)
      .def_property_readonly("device", &Engine::device);
}

}  // namespace llmsrv::bindings
