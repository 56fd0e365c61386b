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
#include "python/bindings/testing/testing.h"

namespace py = pybind11;

namespace llmsrv::testing {
namespace {

// Does what the real backend does, and calls `begin_step` before each step.
class HookedBackend : public Backend {
 public:
  HookedBackend(std::unique_ptr<Backend> real, std::function<void()> begin_step)
      : real_(std::move(real)), begin_step_(std::move(begin_step)) {}

  std::string description() const override { return real_->description(); }
  std::size_t workspace_bytes(const StepLimits& limits) const override { return real_->workspace_bytes(limits); }
  void reserve(const StepLimits& limits) override { real_->reserve(limits); }
  std::size_t kv_block_bytes(const HeadShape& shape, int block_size, DType dtype) const override {
    return real_->kv_block_bytes(shape, block_size, dtype);
  }
  int row_stride(int cols) const override { return real_->row_stride(cols); }

 private:
  void do_run_step(const StepInputs& inputs, const StepBody& body) override {
    begin_step_();
    real_->run_step(inputs, [&](int rows) { run_body(body, rows); });
  }
  void do_embed(const PackedMatrix& table, float scale, TensorView out) override { real_->embed(table, scale, out); }
  void do_gather_rows(TensorView in, std::span<const int> rows, TensorView out) override {
    real_->gather_rows(in, rows, out);
  }
  void do_linear(TensorView in, const Prologue& prologue, std::span<const PackedMatrix> weights,
                 std::span<const float> bias, Accumulate mode, TensorView out) override {
    real_->linear(in, prologue, weights, bias, mode, out);
  }
  void do_add_rms_norm(TensorView in, const RmsNorm& norm, TensorView out) override {
    real_->add_rms_norm(in, norm, out);
  }
  void do_rope_and_store_kv(TensorView qkv, const HeadShape& shape, const std::optional<HeadNorms>& norms,
                            const RopeTable& rope, const KvLayer& cache) override {
    real_->rope_and_store_kv(qkv, shape, norms, rope, cache);
  }
  void do_paged_attention(TensorView qkv, const HeadShape& shape, const KvLayer& cache, const AttentionOptions& options,
                          TensorView out) override {
    real_->paged_attention(qkv, shape, cache, options, out);
  }
  void do_move_blocks(std::span<const KvLayer> from, std::span<const KvLayer> to,
                      std::span<const BlockMove> moves) override {
    real_->move_blocks(from, to, moves);
  }
  void do_draw(TensorView logits, std::span<const SampleRow> rows) override { real_->draw(logits, rows); }
  std::span<const Sampled> do_drawn() override { return real_->drawn(); }

  std::unique_ptr<Backend> real_;
  std::function<void()> begin_step_;
};

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
                                      std::shared_ptr<Team> team, const std::function<void()>& begin_step) {
  constexpr int kThreads = 2;
  if (team == nullptr) team = std::make_shared<Team>(kThreads);
  return std::make_unique<Engine>(std::move(weights), config, std::move(team), [&begin_step](ThreadPool& pool) {
    return std::make_unique<HookedBackend>(make_backend(pool, ""), begin_step);
  });
}

std::unique_ptr<Engine> faulty_engine(std::shared_ptr<Weights> weights, const EngineConfig& config, int good_steps,
                                      std::shared_ptr<Team> team) {
  return hooked_engine(std::move(weights), config, std::move(team), [steps_left = good_steps]() mutable {
    if (steps_left-- == 0) throw DeviceError("the device is gone");
  });
}

std::unique_ptr<Engine> gated_engine(std::shared_ptr<Weights> weights, const EngineConfig& config,
                                     const std::shared_ptr<Gate>& gate, std::shared_ptr<Team> team) {
  return hooked_engine(std::move(weights), config, std::move(team), [gate] { gate->pass(); });
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
             py::arg("team") = std::shared_ptr<Team>());
  module.def("faulty_engine", &faulty_engine, py::arg("weights"), py::arg("config"), py::kw_only(),
             py::arg("good_steps"), py::arg("team") = std::shared_ptr<Team>());
}

}  // namespace llmsrv::testing
