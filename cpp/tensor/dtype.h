// Element types of tensors that operations read and write.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace llmsrv {

enum class DType { kF32, kBf16, kInt8 };

inline std::size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kBf16:
      return 2;
    case DType::kInt8:
      return 1;
  }
  return 0;
}

inline const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kBf16:
      return "bfloat16";
    case DType::kInt8:
      return "int8";
  }
  return "";
}

inline std::optional<DType> dtype_named(std::string_view name) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kInt8}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  return std::nullopt;
}

}  // namespace llmsrv
