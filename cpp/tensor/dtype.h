// Element types of tensors that operations read and write.
#pragma once

#include <cstddef>

namespace llmsrv {

enum class DType { kF32, kBf16 };

inline std::size_t dtype_bytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }
inline const char* dtype_name(DType dtype) { return dtype == DType::kF32 ? "float32" : "bfloat16"; }

}  // namespace llmsrv
