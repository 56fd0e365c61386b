// A two-dimensional window onto memory that somebody else owns and keeps alive.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpp/tensor/dtype.h"

namespace llmsrv {

struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int rows = 0;
  int cols = 0;
  int row_stride = 0;  // elements from one row to the next, >= cols

  static TensorView f32(float* data, int rows, int cols) { return {data, DType::kF32, rows, cols, cols}; }

  // REQUIRES: dtype == kF32
  float* f32_row(int row) const { return static_cast<float*>(data) + static_cast<std::ptrdiff_t>(row) * row_stride; }
  // Rows [first, first + count).
  TensorView slice_rows(int first, int count) const {
    auto* bytes = static_cast<std::byte*>(data) +
                  static_cast<std::ptrdiff_t>(first) * row_stride * static_cast<std::ptrdiff_t>(dtype_bytes(dtype));
    return {bytes, dtype, count, cols, row_stride};
  }
  // Columns [first, first + count) of all rows.
  TensorView slice_cols(int first, int count) const {
    auto* bytes = static_cast<std::byte*>(data) +
                  static_cast<std::ptrdiff_t>(first) * static_cast<std::ptrdiff_t>(dtype_bytes(dtype));
    return {bytes, dtype, rows, count, row_stride};
  }
};

}  // namespace llmsrv
