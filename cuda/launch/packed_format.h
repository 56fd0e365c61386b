// From a packed format known at run time to a kernel's constant.
#pragma once

#include <stdexcept>
#include <string>

#include "cuda/kernels/packed_group.cuh"

namespace llmsrv::cuda {

template <PackedFormat kFormat>
struct FormatConstant {
  static constexpr PackedFormat kValue = kFormat;
};

// Calls f with the format as a constant.
template <typename F>
void with_format(PackedFormat format, const F& f) {
  switch (format) {
    case PackedFormat::kF32:
      return f(FormatConstant<PackedFormat::kF32>{});
    case PackedFormat::kBf16:
      return f(FormatConstant<PackedFormat::kBf16>{});
    case PackedFormat::kU4:
      return f(FormatConstant<PackedFormat::kU4>{});
    case PackedFormat::kU4Zero:
      return f(FormatConstant<PackedFormat::kU4Zero>{});
    case PackedFormat::kU5:
      return f(FormatConstant<PackedFormat::kU5>{});
    case PackedFormat::kU5Zero:
      return f(FormatConstant<PackedFormat::kU5Zero>{});
    case PackedFormat::kS8:
      return f(FormatConstant<PackedFormat::kS8>{});
    case PackedFormat::kU4K:
      return f(FormatConstant<PackedFormat::kU4K>{});
    case PackedFormat::kU5K:
      return f(FormatConstant<PackedFormat::kU5K>{});
    case PackedFormat::kU6K:
      return f(FormatConstant<PackedFormat::kU6K>{});
    case PackedFormat::kU4G64:
      return f(FormatConstant<PackedFormat::kU4G64>{});
    case PackedFormat::kU4G128:
      return f(FormatConstant<PackedFormat::kU4G128>{});
  }
}

// Plain formats come in steps of four columns, the others in groups. Throws std::invalid_argument.
inline void require_cols(const char* operation, int cols, PackedFormat format) {
  const int step = format == PackedFormat::kF32 || format == PackedFormat::kBf16 ? 4 : packed::kGroupCols;
  if (cols % step == 0) return;
  throw std::invalid_argument(std::string("CUDA ") + operation + ": " + std::to_string(cols) +
                              " columns are no multiple of " + std::to_string(step));
}

}  // namespace llmsrv::cuda
