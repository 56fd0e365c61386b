// Engines whose device fails, or waits, when a test says so: for what no healthy and busy device shows.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "cpp/base/check.h"
#include "cpp/engine/backends.h"
#include "cpp/engine/engine.h"
#include "cpp/engine/step_cost.h"
#include "python/bindings/testing/hooked_backend.h"
#include "python/bindings/testing/testing.h"

namespace py = pybind11;

namespace llmsrv::testing {
namespace {

// Where an engine's steps wait while it is closed. Any thread.
class Gate {
 public:
  void open() { set(std::nullopt); }
  // Lets so many more steps pass.
  void close(int more_steps) { set(more_steps); }

  // Waits until a step waits here; false after `timeout_s`.
  bool wait_until_reached(double timeout_s) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::duration<double>(timeout_s), [&] { return is_reached_; });
  }

  void pass() {
    std::unique_lock lock(mutex_);
    if (steps_left_ == 0) {
      is_reached_ = true;
      changed_.notify_all();
      changed_.wait(lock, [&] { return steps_left_ != 0; });
    }
    if (steps_left_) --*steps_left_;
  }

 private:
  void set(std::optional<int> steps) {
    const std::lock_guard lock(mutex_);
    steps_left_ = steps;
    if (steps != 0) is_reached_ = false;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<int> steps_left_;  // nothing: it is open
  bool is_reached_ = false;
};

// `team`: null for one of its own.
std::unique_ptr<Engine> hooked_engine(std::shared_ptr<Weights> weights, const EngineConfig& config,
                                      std::shared_ptr<Team> team, bool is_behind,
                                      const std::function<void()>& begin_step) {
  constexpr int kThreads = 2;
  if (team == nullptr) team = std::make_shared<Team>(kThreads);
  return std::make_unique<Engine>(std::move(weights), config, std::move(team), [&](ThreadPool& pool) {
    return std::make_unique<HookedBackend>(make_backend(pool, ""), begin_step, is_behind);
  });
}

std::unique_ptr<Engine> faulty_engine(std::shared_ptr<Weights> weights, const EngineConfig& config, int good_steps,
                                      std::shared_ptr<Team> team, bool is_behind) {
  return hooked_engine(std::move(weights), config, std::move(team), is_behind, [steps_left = good_steps]() mutable {
    if (steps_left-- == 0) throw DeviceError("the device is gone");
  });
}

std::unique_ptr<Engine> gated_engine(std::shared_ptr<Weights> weights, const EngineConfig& config,
                                     const std::shared_ptr<Gate>& gate, std::shared_ptr<Team> team, bool is_behind) {
  return hooked_engine(std::move(weights), config, std::move(team), is_behind, [gate] { gate->pass(); });
}

}  // namespace

void register_engine(py::module_& module) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<Gate, std::shared_ptr<Gate>>(module, "Gate")
      .def(py::init<>())
      .def("open", &Gate::open)
      .def("close", &Gate::close, py::arg("more_steps") = 0)
      .def("wait_until_reached", &Gate::wait_until_reached, py::arg("timeout_s"), no_gil);
  py::class_<Team::Turn>(module, "Turn")
      .def(py::init<Team&>(), no_gil, py::keep_alive<1, 2>(), py::arg("team"))
      .def("release", &Team::Turn::release);
  py::class_<StepCost>(module, "StepCost")
      .def(py::init<>())
      .def("note", &StepCost::note, py::arg("tokens"), py::arg("seconds"))
      .def("slope_s", &StepCost::slope_s)
      .def("seconds_per_token", &StepCost::seconds_per_token)
      .def_property_readonly_static("HALF_LIFE_STEPS", [](const py::object&) { return StepCost::kHalfLifeSteps; });
  module.def("gated_engine", &gated_engine, py::arg("weights"), py::arg("config"), py::arg("gate"), py::kw_only(),
             py::arg("team") = std::shared_ptr<Team>(), py::arg("is_behind") = false);
  module.def("faulty_engine", &faulty_engine, py::arg("weights"), py::arg("config"), py::kw_only(),
             py::arg("good_steps"), py::arg("team") = std::shared_ptr<Team>(), py::arg("is_behind") = false);
}

}  // namespace llmsrv::testing
