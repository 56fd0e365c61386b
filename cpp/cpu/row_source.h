// The rows that a linear layer multiplies: its input after the prologue, made where and when they are needed.
// Thread rule: any number of threads, each with its own buffer. What a row becomes never depends on its neighbours.
#pragma once

#include <cstddef>
#include <variant>

#include "cpp/base/check.h"
#include "cpp/cpu/kernels.h"
#include "cpp/ops/backend.h"

namespace llmsrv {

class RowSource {
 public:
  // `kernels` and `prologue` must outlive it.
  RowSource(const cpu::KernelTable& kernels, TensorView in, const Prologue& prologue)
      : kernels_(kernels), in_(in), prologue_(prologue) {}

  int rows() const { return in_.rows; }
  int cols() const { return std::holds_alternative<GatedMul>(prologue_) ? in_.cols / 2 : in_.cols; }
  // Whether the rows stand in memory already.
  bool is_ready() const { return std::holds_alternative<std::monostate>(prologue_); }

  // Rows [first, first + count): the input itself when is_ready(), else made in `buffer`. [count, cols()]
  // REQUIRES: `buffer` has room for count * cols() floats, or is_ready()
  TensorView make(int first, int count, float* buffer) const {
    if (is_ready()) return in_.slice_rows(first, count);
    const TensorView made{buffer, DType::kF32, count, cols(), cols()};
    for (int t = 0; t < count; ++t) make_row(in_.f32_row(first + t), made.f32_row(t));
    return made;
  }

 private:
  void make_row(const float* in, float* out) const {
    if (const auto* norm = std::get_if<RmsNorm>(&prologue_)) {
      kernels_.rms_norm(in, norm->weight.data(), cols(), norm->eps, out);
    } else {
      const auto& gated = std::get<GatedMul>(prologue_);
      const auto mul = gated.kind == GateKind::kSilu ? kernels_.silu_mul : kernels_.gelu_mul;
      mul(in, in + cols(), cols(), out);
    }
  }

  const cpu::KernelTable& kernels_;
  const TensorView in_;
  const Prologue& prologue_;
};

}  // namespace llmsrv
