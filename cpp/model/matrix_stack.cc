#include "cpp/model/matrix_stack.h"

#include "cpp/base/check.h"

namespace llmsrv {
namespace {

// The same rows, with neighbours of one format joined.
std::vector<MatrixStack::Rows> joined(std::span<const MatrixStack::Rows> matrices) {
  std::vector<MatrixStack::Rows> result;
  for (const MatrixStack::Rows& rows : matrices) {
    if (!result.empty() && result.back().format == rows.format) {
      result.back().count += rows.count;
    } else {
      result.push_back(rows);
    }
  }
  return result;
}

}  // namespace

MatrixStack::MatrixStack(std::span<const Rows> matrices, int cols) {
  int first_row = 0;
  for (const Rows& rows : joined(matrices)) {
    parts_.push_back({PackedMatrix(rows.format, rows.count, cols), first_row});
    first_row += rows.count;
  }
}

MatrixStack::Part& MatrixStack::part_of(int row) {
  for (Part& part : parts_) {
    if (row >= part.first_row && row < part.first_row + part.matrix.rows()) return part;
  }
  throw InternalError("no part of the stack has row " + std::to_string(row));
}

std::size_t MatrixStack::packed_bytes(std::span<const Rows> matrices, int cols) {
  std::size_t bytes = 0;
  for (const Rows& rows : joined(matrices)) bytes += PackedMatrix::packed_bytes(rows.format, rows.count, cols);
  return bytes;
}

}  // namespace llmsrv
