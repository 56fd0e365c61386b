// A weight matrix in the layout that kernels stream: panels of 16 output rows, all columns, contiguous.
//
//   kBf16: panel[k / 2][row 16][2]  bf16: one 64-byte line holds two columns of 16 rows
//   kF32:  panel[k][row 16]         float: one 64-byte line holds one column of 16 rows
//
// Rows are padded to a multiple of 16 and columns to a multiple of 2, with zeros.
// Thread rule: set_rows() while loading; afterwards read only, from any thread.
#pragma once

#include <cstddef>
#include <span>

#include "cpp/base/aligned_buffer.h"
#include "cpp/base/thread_pool.h"
#include "cpp/quant/source_format.h"

namespace llmsrv {

enum class WeightFormat { kBf16, kF32 };

class PackedMatrix {
 public:
  static constexpr int kPanelRows = 16;

  PackedMatrix() = default;
  // Zero matrix. REQUIRES: rows > 0, cols > 0
  PackedMatrix(WeightFormat format, int rows, int cols);

  // Unpacks `count` source rows and stores them as rows [first, first + count), in parallel over `pool`.
  // REQUIRES: the range lies inside the matrix; `source` holds count * source_row_bytes(format, cols()) bytes.
  void set_rows(int first, int count, SourceFormat format, std::span<const std::byte> source, ThreadPool& pool);

  WeightFormat format() const { return format_; }
  int rows() const { return rows_; }
  int cols() const { return cols_; }
  int panels() const { return (rows_ + kPanelRows - 1) / kPanelRows; }
  std::size_t panel_bytes() const { return packed_panel_bytes(format_, cols_); }
  const std::byte* panel(int index) const { return buffer_.data() + panel_bytes() * static_cast<std::size_t>(index); }
  std::size_t bytes() const { return buffer_.size(); }

  // Memory that a matrix of this shape takes.
  static std::size_t packed_panel_bytes(WeightFormat format, int cols);
  static std::size_t packed_bytes(WeightFormat format, int rows, int cols);

 private:
  WeightFormat format_ = WeightFormat::kF32;
  int rows_ = 0;
  int cols_ = 0;
  AlignedBuffer buffer_;
};

}  // namespace llmsrv
