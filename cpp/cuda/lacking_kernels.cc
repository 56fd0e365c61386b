#include "cpp/cuda/lacking_kernels.h"

#include <algorithm>
#include <set>
#include <span>

namespace llmsrv {
namespace {

// Columns that kernels take at once: of floats, and of what tensor cores multiply.
constexpr int kFloatCols = 8;
constexpr int kPackedCols = 32;

template <typename Numbers>
std::string listed(const Numbers& numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

}  // namespace

std::vector<std::string> lacking_kernels(const KernelNeeds& needs, DType inner, const device::LaunchTable& launches) {
  std::vector<std::string> lacking;
  const bool is_float = inner == DType::kF32;
  const int unit = is_float ? kFloatCols : kPackedCols;
  std::set<int> odd_cols;
  for (const int cols : needs.input_cols) {
    if (cols % unit != 0) odd_cols.insert(cols);
  }
  if (!odd_cols.empty()) {
    lacking.push_back("linear layers of " + listed(odd_cols) + " columns (only multiples of " + std::to_string(unit) +
                      ")");
  }
  if (is_float) return lacking;

  const std::span head_dims(launches.head_dims, static_cast<std::size_t>(launches.head_dim_count));
  if (std::ranges::find(head_dims, needs.shape.head_dim) == head_dims.end()) {
    lacking.push_back("head size " + std::to_string(needs.shape.head_dim) + " (only " + listed(head_dims) +
                      "; with weights of float32 any)");
  }
  if (std::ranges::find(needs.formats, WeightFormat::kF32) != needs.formats.end()) {
    lacking.push_back("weights of float32 beside others (--dtype bfloat16 or float32 makes them alike)");
  }
  if (needs.kv_dtype == DType::kF32) {
    lacking.push_back("kv_cache_dtype float32 beside weights of other types");
  }
  return lacking;
}

}  // namespace llmsrv
