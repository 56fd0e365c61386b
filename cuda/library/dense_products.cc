#include "cuda/library/dense_products.h"

#include <bit>

namespace llmsrv::cuda {

using cublaslt::Layout;
using cublaslt::LayoutAttribute;
using cublaslt::OperationAttribute;
using cublaslt::PreferenceAttribute;
using cublaslt::Status;

// In the library's terms out' = w x', column by column: w' is its a, transposed; x' its b; out' its c and d.
struct DenseProducts::Plan {
  Plan(const cublaslt::Functions& functions, const DenseShape& shape, int rows_max)
      : functions(functions), shape(shape), rows_max(rows_max) {}
  ~Plan() {
    for (Layout layout : {weights, in, out}) {
      if (layout != nullptr) functions.destroy_layout(layout);
    }
    if (operation != nullptr) functions.destroy_operation(operation);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  const cublaslt::Functions& functions;
  const DenseShape shape;
  const int rows_max;
  cublaslt::Operation operation = nullptr;
  Layout weights = nullptr;
  Layout in = nullptr;
  Layout out = nullptr;
  cublaslt::Algorithm algorithm{};
};

DenseProducts::DenseProducts(const cublaslt::Functions& functions, const Options& options)
    : functions_(functions), options_(options) {
  require(functions_.create(&handle_), "a handle");
}

DenseProducts::~DenseProducts() {
  plans_.clear();
  functions_.destroy(handle_);
}

void DenseProducts::prepare(const DenseShape& shape, int rows_max) {
  if (find_plan(shape, rows_max) != nullptr) return;
  // Steps of the free choice: 1, 2, 4, ... rows. One that covers all rows, and is found for the reference, otherwise.
  const auto most = static_cast<int>(std::bit_ceil(static_cast<unsigned>(rows_max)));
  for (int rows = options_.deterministic ? most : 1; rows <= most; rows *= 2) {
    auto plan = std::make_unique<Plan>(functions_, shape, rows);
    const auto outputs = static_cast<std::uint64_t>(shape.outputs);
    const auto cols = static_cast<std::uint64_t>(shape.cols);
    const int in_type = shape.fp8 ? cublaslt::kFloat8 : cublaslt::kBfloat16;
    const int out_type = shape.float_out ? cublaslt::kFloat32 : cublaslt::kBfloat16;
    require(functions_.create_operation(&plan->operation, cublaslt::kComputeFloat32, cublaslt::kFloat32), "a product");
    require(functions_.set_operation(plan->operation, OperationAttribute::kTransposeA, &cublaslt::kTransposed,
                                     sizeof cublaslt::kTransposed),
            "a transposed product");
    require(functions_.create_layout(&plan->weights, in_type, cols, outputs, shape.cols), "a layout");
    require(functions_.create_layout(&plan->in, in_type, cols, 1, shape.cols), "a layout");
    require(functions_.create_layout(&plan->out, out_type, outputs, 1, shape.outputs), "a layout");
    set_rows(*plan, options_.deterministic ? kReferenceRows : rows, shape.cols, shape.outputs);
    plan->algorithm = find(*plan);
    plans_.push_back(std::move(plan));
  }
}

void DenseProducts::multiply(const DenseProduct& product, cudaStream_t stream) {
  if (product.rows == 0) return;
  const Plan* found_plan = find_plan(product.shape, product.rows);
  if (found_plan == nullptr) throw LibraryError("cuBLASLt: a product of this shape was not prepared");
  const Plan& plan = *found_plan;
  set_rows(plan, product.rows, product.in_stride, product.out_stride);
  const float one = 1.0f;
  const float kept = product.adds ? 1.0f : 0.0f;
  require(functions_.multiply(handle_, plan.operation, &one, product.weights, plan.weights, product.in, plan.in, &kept,
                              product.out, plan.out, product.out, plan.out, &plan.algorithm, options_.workspace,
                              options_.workspace_bytes, stream),
          "this product");
}

const DenseProducts::Plan* DenseProducts::find_plan(const DenseShape& shape, int rows) const {
  for (const std::unique_ptr<Plan>& plan : plans_) {
    if (plan->shape == shape && rows <= plan->rows_max) return plan.get();
  }
  return nullptr;
}

void DenseProducts::set_rows(const Plan& plan, int rows, int in_stride, int out_stride) const {
  const auto set = [&](Layout layout, LayoutAttribute attribute, std::int64_t value) {
    require(functions_.set_layout(layout, attribute, &value, sizeof value), "a layout");
  };
  set(plan.in, LayoutAttribute::kCols, rows);
  set(plan.in, LayoutAttribute::kStride, in_stride);
  set(plan.out, LayoutAttribute::kCols, rows);
  set(plan.out, LayoutAttribute::kStride, out_stride);
}

cublaslt::Algorithm DenseProducts::find(const Plan& plan) const {
  cublaslt::Preference preference = nullptr;
  require(functions_.create_preference(&preference), "a preference");
  const std::unique_ptr<cublaslt::PreferenceContent, Status (*)(cublaslt::Preference)> owner(
      preference, functions_.destroy_preference);
  const auto set = [&](PreferenceAttribute attribute, const auto& value) {
    require(functions_.set_preference(preference, attribute, &value, sizeof value), "a preference");
  };
  set(PreferenceAttribute::kWorkspaceBytes, std::uint64_t{options_.workspace_bytes});
  if (options_.deterministic) set(PreferenceAttribute::kReductionSchemes, cublaslt::kNoReduction);
  for (const PreferenceAttribute attribute : {PreferenceAttribute::kAlignmentA, PreferenceAttribute::kAlignmentB,
                                              PreferenceAttribute::kAlignmentC, PreferenceAttribute::kAlignmentD}) {
    set(attribute, std::uint32_t{kAlignment});
  }
  cublaslt::HeuristicResult result{};
  int found = 0;
  require(functions_.find_algorithms(handle_, plan.operation, plan.weights, plan.in, plan.out, plan.out, preference, 1,
                                     &result, &found),
          "an algorithm");
  if (found == 0) require(result.state == cublaslt::kSuccess ? -1 : result.state, "an algorithm");
  return result.algorithm;
}

void DenseProducts::require(Status status, const char* what) const {
  if (status == cublaslt::kSuccess) return;
  throw LibraryError(std::string("cuBLASLt refuses ") + what + " (status " + std::to_string(status) + ")");
}

}  // namespace llmsrv::cuda
