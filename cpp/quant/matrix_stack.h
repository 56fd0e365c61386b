// Weight matrices that read the same input, one below the other: q, k and v, or gate and up. Neighbours of one format
// are a single PackedMatrix; a file may give each its own format. Thread rule: as PackedMatrix.
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
  // Where a row of the stack stands.
  struct Place {
    PackedMatrix* matrix;
    int row;
  };

  MatrixStack() = default;
  // Zero matrices. REQUIRES: each has count > 0
  MatrixStack(std::span<const Rows> matrices, int cols);

  // The stack from top to bottom: as one linear layer takes it.
  std::span<const PackedMatrix> parts() const { return parts_; }
  // REQUIRES: 0 <= row < number of rows
  Place place_of(int row);

  // Memory that such a stack takes.
  static std::size_t packed_bytes(std::span<const Rows> matrices, int cols);

 private:
  std::vector<PackedMatrix> parts_;
};

}  // namespace llmsrv
