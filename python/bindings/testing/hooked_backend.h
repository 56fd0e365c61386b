// A backend over the CPU's that a test can stop, break, or have answer as late as a device does.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cpp/ops/backend.h"

namespace llmsrv::testing {

// Does what the real backend does, and calls `begin_step` before each step. With `is_behind` it takes steps and draws
// whose tokens the caller cannot know yet, as a device does; it computes them at once all the same.
class HookedBackend : public Backend {
 public:
  HookedBackend(std::unique_ptr<Backend> real, std::function<void()> begin_step, bool is_behind)
      : real_(std::move(real)), begin_step_(std::move(begin_step)), is_behind_(is_behind) {}

  std::string description() const override { return real_->description(); }
  std::size_t workspace_bytes(const StepLimits& limits) const override { return real_->workspace_bytes(limits); }
  void reserve(const StepLimits& limits) override { real_->reserve(limits); }
  std::size_t kv_block_bytes(const HeadShape& shape, int block_size, DType dtype) const override {
    return real_->kv_block_bytes(shape, block_size, dtype);
  }
  int row_stride(int cols) const override { return real_->row_stride(cols); }
  bool works_behind() const override { return is_behind_; }

 private:
  void do_run_step(const StepInputs& inputs, const StepBody& body) override {
    begin_step_();
    StepInputs known = inputs;
    known.from_draw.clear();
    for (const DrawnToken& drawn : inputs.from_draw) {
      known.tokens[static_cast<std::size_t>(drawn.row)] = token_of(drawn.draw_row);
    }
    real_->run_step(known, [&](int rows) { run_body(body, rows); });
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
  void do_draw(TensorView logits, std::span<const SampleRow> rows) override {
    std::vector<SampleRow> known(rows.begin(), rows.end());
    std::vector<std::vector<TokenId>> outputs(rows.size());
    for (std::size_t row = 0; row < rows.size(); ++row) {
      outputs[row].assign(rows[row].output.begin(), rows[row].output.end());
      if (rows[row].pending) outputs[row].push_back(token_of(*rows[row].pending));
      known[row].output = outputs[row];
      known[row].pending.reset();
    }
    real_->draw(logits, known);
    const std::span<const Sampled> drawn = real_->drawn();
    draws_.emplace_back(drawn.begin(), drawn.end());
    newest_ = draws_.back();
  }
  std::span<const Sampled> do_drawn() override {
    taken_ = std::move(draws_.front());
    draws_.pop_front();
    return taken_;
  }
  TokenId token_of(int draw_row) const { return newest_.at(static_cast<std::size_t>(draw_row)).token; }

  std::unique_ptr<Backend> real_;
  std::function<void()> begin_step_;
  const bool is_behind_;
  std::deque<std::vector<Sampled>> draws_;  // that nobody has taken
  std::vector<Sampled> newest_;
  std::vector<Sampled> taken_;
};

}  // namespace llmsrv::testing
