// The table's plain structs as what kernels take: pointers of a type, and packed formats. They throw
// std::invalid_argument for types that do not fit.
#pragma once

#include <stdexcept>

#include "cpp/ops/launches.h"
#include "cuda/launch/packed_format.h"

namespace llmsrv::cuda {

template <typename T>
constexpr device::Element kElementOf = device::Element::kF32;
template <>
constexpr device::Element kElementOf<Bf16> = device::Element::kBf16;
template <>
constexpr device::Element kElementOf<Half> = device::Element::kF16;

template <typename T>
T* pointer(const device::Rows& rows) {
  if (rows.type != kElementOf<T>) throw std::invalid_argument("rows of a type that this launch does not take");
  return static_cast<T*>(rows.data);
}

inline PackedFormat packed_format(device::Packing packing) {
  switch (packing) {
    case device::Packing::kF32:
      return PackedFormat::kF32;
    case device::Packing::kBf16:
      return PackedFormat::kBf16;
    case device::Packing::kU4:
      return PackedFormat::kU4;
    case device::Packing::kU4Zero:
      return PackedFormat::kU4Zero;
    case device::Packing::kU5:
      return PackedFormat::kU5;
    case device::Packing::kU5Zero:
      return PackedFormat::kU5Zero;
    case device::Packing::kS8:
      return PackedFormat::kS8;
    case device::Packing::kU4K:
      return PackedFormat::kU4K;
    case device::Packing::kU5K:
      return PackedFormat::kU5K;
    case device::Packing::kU6K:
      return PackedFormat::kU6K;
    case device::Packing::kU4G64:
      return PackedFormat::kU4G64;
    case device::Packing::kU4G128:
      return PackedFormat::kU4G128;
  }
  throw std::invalid_argument("a packing without a kernel");
}

}  // namespace llmsrv::cuda
