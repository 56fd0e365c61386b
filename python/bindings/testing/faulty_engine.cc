// An engine whose device fails after a given number of steps: for the path that no healthy device takes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <utility>

#include "cpp/base/check.h"
#include "cpp/engine/backends.h"
#include "cpp/engine/engine.h"
#include "python/bindings/testing/testing.h"

namespace py = pybind11;

namespace llmsrv::testing {
namespace {

// Does what the real backend does, until the step after `good_steps`.
class FaultyBackend : public Backend {
 public:
  FaultyBackend(std::unique_ptr<Backend> real, int good_steps) : real_(std::move(real)), steps_left_(good_steps) {}

  std::string description() const override { return real_->description(); }
  std::size_t workspace_bytes(const StepLimits& limits) const override { return real_->workspace_bytes(limits); }
  void reserve(const StepLimits& limits) override { real_->reserve(limits); }
  std::size_t kv_block_bytes(const HeadShape& shape, int block_size, DType dtype) const override {
    return real_->kv_block_bytes(shape, block_size, dtype);
  }

 private:
  void do_embed(std::span<const TokenId> ids, const PackedMatrix& table, TensorView out) override {
    if (steps_left_-- == 0) throw DeviceError("the device is gone");
    real_->embed(ids, table, out);
  }
  void do_rms_norm(TensorView in, std::span<const float> weight, float eps, TensorView out) override {
    real_->rms_norm(in, weight, eps, out);
  }
  void do_linear(TensorView in, const PackedMatrix& weight, std::span<const float> bias, Accumulate mode,
                 TensorView out) override {
    real_->linear(in, weight, bias, mode, out);
  }
  void do_rope_and_store_kv(TensorView qkv, const HeadShape& shape, const RopeTable& rope,
                            std::span<const std::int32_t> positions, std::span<const KvSlot> slots,
                            const KvLayer& cache) override {
    real_->rope_and_store_kv(qkv, shape, rope, positions, slots, cache);
  }
  void do_paged_attention(TensorView qkv, const HeadShape& shape, const KvLayer& cache,
                          std::span<const AttentionRange> ranges, const AttentionOptions& options,
                          TensorView out) override {
    real_->paged_attention(qkv, shape, cache, ranges, options, out);
  }
  void do_move_blocks(std::span<const KvLayer> from, std::span<const KvLayer> to,
                      std::span<const BlockMove> moves) override {
    real_->move_blocks(from, to, moves);
  }
  void do_silu_mul(TensorView gate_up, TensorView out) override { real_->silu_mul(gate_up, out); }

  std::unique_ptr<Backend> real_;
  int steps_left_;
};

std::unique_ptr<Engine> faulty_engine(std::shared_ptr<Weights> weights, const EngineConfig& config, int good_steps) {
  constexpr int kThreads = 2;
  return std::make_unique<Engine>(std::move(weights), config, kThreads, [good_steps](ThreadPool& pool) {
    return std::make_unique<FaultyBackend>(make_backend(pool, ""), good_steps);
  });
}

}  // namespace

void register_faulty_engine(py::module_& module) {
  module.def("faulty_engine", &faulty_engine, py::arg("weights"), py::arg("config"), py::kw_only(),
             py::arg("good_steps"));
}

}  // namespace llmsrv::testing
