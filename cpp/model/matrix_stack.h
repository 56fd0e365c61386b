// Weight matrices that read the same input, one below the other: q, k and v, or gate and up. Neighbours of one format
// are a single PackedMatrix, so that one pass over the activations serves them all; a file may give each its own
// format. Thread rule: as PackedMatrix.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cpp/quant/packed_matrix.h"

namespace llmsrv {

class MatrixStack {
 public:
  // One matrix of the stack.
  struct Rows {
    int count;
    WeightFormat format;
  };
  // What is multiplied at once: rows [first_row, first_row + matrix.rows()) of the stack.
  struct Part {
    PackedMatrix matrix;
    int first_row;
  };

  MatrixStack() = default;
  // Zero matrices. REQUIRES: each has count > 0
  MatrixStack(std::span<const Rows> matrices, int cols);

  std::span<const Part> parts() const { return parts_; }
  // The part that holds a row. REQUIRES: 0 <= row < number of rows
  Part& part_of(int row);

  // Memory that such a stack takes.
  static std::size_t packed_bytes(std::span<const Rows> matrices, int cols);

 private:
  std::vector<Part> parts_;  // in the order of their rows
};

}  // namespace llmsrv
