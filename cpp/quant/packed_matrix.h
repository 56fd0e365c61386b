// A weight matrix in the layout that kernels stream: panels of 16 output rows, all columns, contiguous.
//
//   kBf16: panel[k / 2][row 16][2]  bf16: one 64-byte line holds two columns of 16 rows
//   kF32:  panel[k][row 16]         float: one 64-byte line holds one column of 16 rows
//   quantized formats: superblocks of integers and scales, packed_layout.h
//
// Rows are padded to a multiple of 16; columns to a multiple of 2, or to a superblock; with zeros.
// Thread rule: set_rows() or map() while loading; afterwards read only, from any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "cpp/base/mapped_file.h"
#include "cpp/base/thread_pool.h"
#include "cpp/quant/packed_memory.h"
#include "cpp/quant/source_format.h"
#include "cpp/quant/weight_format.h"

namespace llmsrv {

class PackedMatrix {
 public:
  static constexpr int kPanelRows = packed::kPanelRows;

  PackedMatrix() = default;
  // Zero matrix. REQUIRES: rows > 0, cols > 0; cols is a multiple of scale_cols(format)
  PackedMatrix(WeightFormat format, int rows, int cols);

  // Stores `count` source rows as rows [first, first + count), in parallel over `pool`. A quantized format takes the
  // blocks of its own source format and only permutes them; kS8 and kU4 also quantize plain sources (quantize.h), and
  // their kin of larger groups take nothing else; kBf16 and kF32 take the floats that any source stands for.
  // REQUIRES: accepts(format(), format); the range lies inside the matrix; `source` holds
  // count * source_row_bytes(format, cols()) bytes.
  void set_rows(int first, int count, SourceFormat format, std::span<const std::byte> source, ThreadPool& pool);
  static bool accepts(WeightFormat format, SourceFormat source);

  // Takes its bytes, as they stood in a matrix of the same format and shape, from a file; set_rows() must not follow.
  // REQUIRES: bytes() bytes of the file from `offset` on, which is a multiple of a cache line
  void map(std::shared_ptr<const MappedFile> file, std::size_t offset);

  // Writes row `row` as cols() floats: for a quantized format exactly what unpack_row() of source_format.h gives for
  // the source row. Any thread. REQUIRES: 0 <= row < rows()
  void unpack_row(int row, float* out) const;

  WeightFormat format() const { return format_; }
  int rows() const { return rows_; }
  int cols() const { return cols_; }
  int panels() const { return (rows_ + kPanelRows - 1) / kPanelRows; }
  std::size_t panel_bytes() const { return packed_panel_bytes(format_, cols_); }
  std::span<const std::byte> data() const { return {memory_.data(), memory_.size()}; }
  const std::byte* panel(int index) const { return memory_.data() + panel_bytes() * static_cast<std::size_t>(index); }
  std::size_t bytes() const { return memory_.size(); }

  // Memory that a matrix of this shape takes.
  static std::size_t packed_panel_bytes(WeightFormat format, int cols);
  static std::size_t packed_bytes(WeightFormat format, int rows, int cols);

 private:
  WeightFormat format_ = WeightFormat::kF32;
  int rows_ = 0;
  int cols_ = 0;
  PackedMemory memory_;
};

}  // namespace llmsrv
