#include "cpp/cuda/library_linear.h"

#include <algorithm>
#include <cstdint>

namespace llmsrv {
namespace {

constexpr std::size_t kRowAlignment = 16;  // bytes
// A piece of a matrix, where that is larger: of models of 8B parameters only the head is. Products of smaller pieces
// leave a large device idle.
constexpr std::size_t kUnpackedMost = std::size_t{128} << 20;
// What NVIDIA's manual asks for.
constexpr std::size_t kWorkspaceOfHopper = std::size_t{32} << 20;
constexpr std::size_t kWorkspaceBefore = std::size_t{4} << 20;
constexpr int kHopper = 9;

bool is_aligned(const device::Rows& rows, std::size_t element_bytes) {
  return reinterpret_cast<std::uintptr_t>(rows.data) % kRowAlignment == 0 &&
         static_cast<std::size_t>(rows.stride) * element_bytes % kRowAlignment == 0;
}

}  // namespace

LibraryLinear::LibraryLinear(const Device& device, int rows_min)
    : device_(device), rows_min_(rows_min), found_(device.products().open() == device::Code::kOk) {}

LibraryLinear::~LibraryLinear() {
  if (products_ != nullptr) device_.products().destroy(products_);
}

std::size_t LibraryLinear::workspace_bytes(const StepLimits& limits) const {
  if (!is_used(limits)) return 0;
  return device_.properties().major >= kHopper ? kWorkspaceOfHopper : kWorkspaceBefore;
}

std::size_t LibraryLinear::unpacked_bytes(const StepLimits& limits) const {
  if (!is_used(limits)) return 0;
  return std::min(limits.matrix_values * dtype_bytes(DType::kBf16), kUnpackedMost);
}

void LibraryLinear::reserve(const StepLimits& limits) {
  if (!is_used(limits)) return;
  workspace_.emplace(device_, workspace_bytes(limits), MemoryPlace::kDevice);
  unpacked_.emplace(device_, unpacked_bytes(limits), MemoryPlace::kDevice);
  const device::ProductOptions options{workspace_->data(), workspace_->size(), unpacked_->data(), unpacked_->size(),
                                       limits.tokens};
  device_.check(device_.products().create(&options, &products_));
}

bool LibraryLinear::takes(const device::Linear& linear) const {
  if (products_ == nullptr || linear.in.rows < rows_min_ || linear.in.type != device::Element::kBf16) return false;
  const bool is_float = linear.out.type == device::Element::kF32;
  return is_aligned(linear.in, dtype_bytes(DType::kBf16)) &&
         is_aligned(linear.out, dtype_bytes(is_float ? DType::kF32 : DType::kBf16));
}

void LibraryLinear::run(const device::Linear& linear, const DeviceStream& stream) const {
  device_.check(device_.products().linear(products_, &linear, stream.handle()));
}

}  // namespace llmsrv
