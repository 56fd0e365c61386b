#include "cpp/quant/packed_matrix.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cpp/base/check.h"
#include "cpp/base/float16.h"

namespace llmsrv {
namespace {

constexpr int kRows = PackedMatrix::kPanelRows;

std::size_t column_pairs(int cols) { return (static_cast<std::size_t>(cols) + 1) / 2; }

// Writes one row into its lane of a panel. `padded` holds 2 * column_pairs(cols) values.
void store_row_bf16(const std::vector<float>& padded, std::byte* panel, int lane) {
  std::byte* at = panel + lane * 4;
  for (std::size_t k = 0; k < padded.size(); k += 2, at += kRows * 4) {
    const std::uint32_t pair = float_to_bf16(padded[k]) | static_cast<std::uint32_t>(float_to_bf16(padded[k + 1]))
                                                              << 16;
    std::memcpy(at, &pair, sizeof(pair));
  }
}

void store_row_f32(const std::vector<float>& padded, std::byte* panel, int lane) {
  std::byte* at = panel + lane * 4;
  for (std::size_t k = 0; k < padded.size(); ++k, at += kRows * 4) std::memcpy(at, &padded[k], sizeof(float));
}

}  // namespace

std::size_t PackedMatrix::packed_panel_bytes(WeightFormat format, int cols) {
  const std::size_t value_bytes = format == WeightFormat::kBf16 ? 2 : 4;
  return column_pairs(cols) * 2 * kRows * value_bytes;
}

std::size_t PackedMatrix::packed_bytes(WeightFormat format, int rows, int cols) {
  const auto panels = (static_cast<std::size_t>(rows) + kRows - 1) / kRows;
  return panels * packed_panel_bytes(format, cols);
}

PackedMatrix::PackedMatrix(WeightFormat format, int rows, int cols)
    : format_(format), rows_(rows), cols_(cols), buffer_(packed_bytes(format, rows, cols)) {
  LLMSRV_CHECK(rows > 0 && cols > 0);
}

void PackedMatrix::set_rows(int first, int count, SourceFormat format, std::span<const std::byte> source,
                            ThreadPool& pool) {
  LLMSRV_CHECK(first >= 0 && count >= 0 && count <= rows_ - first);
  const std::size_t row_bytes = source_row_bytes(format, cols_);
  LLMSRV_CHECK(source.size() == row_bytes * static_cast<std::size_t>(count));
  if (count == 0) return;

  // One unpacked row per member, padded with a zero to an even number of columns.
  std::vector<std::vector<float>> scratch(static_cast<std::size_t>(pool.size()),
                                          std::vector<float>(column_pairs(cols_) * 2, 0.0f));
  // Members take whole panels, since the rows of a panel share cache lines.
  const int first_panel = first / kRows;
  const int touched_panels = (first + count - 1) / kRows + 1 - first_panel;
  pool.run([&](int member) {
    std::vector<float>& row_values = scratch[static_cast<std::size_t>(member)];
    const ThreadPool::Range panels = pool.share(touched_panels, member);
    const int begin = std::max(first, (first_panel + panels.begin) * kRows);
    const int end = std::min(first + count, (first_panel + panels.end) * kRows);
    for (int row = begin; row < end; ++row) {
      unpack_row(format, source.data() + row_bytes * static_cast<std::size_t>(row - first), cols_, row_values.data());
      std::byte* panel = buffer_.data() + panel_bytes() * static_cast<std::size_t>(row / kRows);
      if (format_ == WeightFormat::kBf16) {
        store_row_bf16(row_values, panel, row % kRows);
      } else {
        store_row_f32(row_values, panel, row % kRows);
      }
    }
  });
}

}  // namespace llmsrv
