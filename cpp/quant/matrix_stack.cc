#include "cpp/quant/matrix_stack.h"

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
  for (const Rows& rows : joined(matrices)) parts_.emplace_back(rows.format, rows.count, cols);
}

MatrixStack::Place MatrixStack::place_of(int row) {
  int below = row;
  for (PackedMatrix& part : parts_) {
    if (below < part.rows()) return {&part, below};
    below -= part.rows();
  }
  throw InternalError("the stack has no row " + std::to_string(row));
}

std::size_t MatrixStack::packed_bytes(std::span<const Rows> matrices, int cols) {
  std::size_t bytes = 0;
  for (const Rows& rows : joined(matrices)) bytes += PackedMatrix::packed_bytes(rows.format, rows.count, cols);
  return bytes;
}

}  // namespace llmsrv
