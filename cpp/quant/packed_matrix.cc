#include "cpp/quant/packed_matrix.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "cpp/base/check.h"
#include "cpp/base/float16.h"
#include "cpp/quant/packed_lane.h"
#include "cpp/quant/packed_row.h"
#include "cpp/quant/quantize.h"

namespace llmsrv {
namespace {

constexpr int kRows = PackedMatrix::kPanelRows;
constexpr std::ptrdiff_t kLine = packed::kLineBytes;

std::size_t column_pairs(int cols) { return (static_cast<std::size_t>(cols) + 1) / 2; }

// Writes one row into its lane of a panel. `padded` holds 2 * column_pairs(cols) values.
void store_row_bf16(const std::vector<float>& padded, std::byte* panel, int lane) {
  std::byte* at = panel + lane * 4;
  for (std::size_t k = 0; k < padded.size(); k += 2, at += kLine) {
    const std::uint32_t pair = float_to_bf16(padded[k]) | static_cast<std::uint32_t>(float_to_bf16(padded[k + 1]))
                                                              << 16;
    std::memcpy(at, &pair, sizeof(pair));
  }
}

void store_row_f32(const std::vector<float>& padded, std::byte* panel, int lane) {
  std::byte* at = panel + lane * 4;
  for (std::size_t k = 0; k < padded.size(); ++k, at += kLine) std::memcpy(at, &padded[k], sizeof(float));
}

void load_row_bf16(const std::byte* panel, int lane, int cols, float* out) {
  for (int k = 0; k < cols; ++k) {
    std::uint16_t value;
    std::memcpy(&value, panel + lane * 4 + k / 2 * kLine + k % 2 * 2, sizeof(value));
    out[k] = bf16_to_float(value);
  }
}

void load_row_f32(const std::byte* panel, int lane, int cols, float* out) {
  for (int k = 0; k < cols; ++k) std::memcpy(out + k, panel + lane * 4 + k * kLine, sizeof(float));
}

int blocks_in_row(WeightFormat format, int cols) { return cols / source_block_values(source_of(format)); }

void quantize_row(WeightFormat format, const std::vector<float>& values, std::byte* panel, int lane) {
  const int group_cols = scale_cols(format);
  std::array<QuantBlock, kMaxQuantizedGroupBlocks> room;
  const std::span blocks = std::span(room).first(static_cast<std::size_t>(group_cols / packed::kGroupCols));
  LaneBlock at{lane, 0};
  for (int first = 0; first < static_cast<int>(values.size()); first += group_cols) {
    quantize_group(format, values.data() + first, blocks);
    for (const QuantBlock& block : blocks) {
      store_block(format, panel, at, block);
      ++at.block;
    }
  }
}

void load_quantized_row(WeightFormat format, const std::byte* panel, int lane, int cols, float* out) {
  const SourceFormat meaning = source_of(format);
  QuantBlock block;
  for (int index = 0; index < blocks_in_row(format, cols); ++index, out += source_block_values(meaning)) {
    load_block(format, panel, {lane, index}, block);
    block_values(meaning, block, out);
  }
}

}  // namespace

std::size_t PackedMatrix::packed_panel_bytes(WeightFormat format, int cols) {
  if (!is_quantized(format)) {
    const std::size_t value_bytes = format == WeightFormat::kBf16 ? 2 : 4;
    return column_pairs(cols) * 2 * kRows * value_bytes;
  }
  const packed::Superblock& layout = superblock_of(format);
  const int superblock_cols = layout.groups * packed::kGroupCols;
  const auto superblocks = static_cast<std::size_t>((cols + superblock_cols - 1) / superblock_cols);
  return superblocks * static_cast<std::size_t>(layout.bytes);
}

std::size_t PackedMatrix::packed_bytes(WeightFormat format, int rows, int cols) {
  const auto panels = (static_cast<std::size_t>(rows) + kRows - 1) / kRows;
  return panels * packed_panel_bytes(format, cols);
}

bool PackedMatrix::accepts(WeightFormat format, SourceFormat source) {
  if (!is_quantized(format)) return true;
  if (source == source_of(format)) return scale_cols(format) == source_block_values(source);
  return can_quantize_to(format) && source_block_values(source) == 1;
}

PackedMatrix::PackedMatrix(WeightFormat format, int rows, int cols)
    : format_(format), rows_(rows), cols_(cols), memory_(packed_bytes(format, rows, cols)) {
  LLMSRV_CHECK(rows > 0 && cols > 0 && cols % scale_cols(format) == 0);
}

void PackedMatrix::map(std::shared_ptr<const MappedFile> file, std::size_t offset) {
  memory_ = PackedMemory(std::move(file), offset, bytes());
}

void PackedMatrix::set_rows(int first, int count, SourceFormat format, std::span<const std::byte> source,
                            ThreadPool& pool) {
  LLMSRV_CHECK(accepts(format_, format));
  LLMSRV_CHECK(first >= 0 && count >= 0 && count <= rows_ - first);
  const std::size_t row_bytes = source_row_bytes(format, cols_);
  LLMSRV_CHECK(source.size() == row_bytes * static_cast<std::size_t>(count));
  if (count == 0) return;

  std::byte* panels_begin = memory_.writable_data();
  // One unpacked row per member, padded with a zero to an even number of columns.
  std::vector<std::vector<float>> scratch(static_cast<std::size_t>(pool.size()),
                                          std::vector<float>(column_pairs(cols_) * 2, 0.0f));
  const auto store_row = [&](const std::byte* in, int row, std::vector<float>& values) {
    std::byte* panel = panels_begin + panel_bytes() * static_cast<std::size_t>(row / kRows);
    if (is_quantized(format_) && format == source_of(format_)) {
      return store_source_row(format_, in, blocks_in_row(format_, cols_), panel, row % kRows);
    }
    llmsrv::unpack_row(format, in, cols_, values.data());
    if (is_quantized(format_)) return quantize_row(format_, values, panel, row % kRows);
    format_ == WeightFormat::kBf16 ? store_row_bf16(values, panel, row % kRows)
                                   : store_row_f32(values, panel, row % kRows);
  };
  // Members take whole panels, since the rows of a panel share cache lines and even bytes.
  const int first_panel = first / kRows;
  const int touched_panels = (first + count - 1) / kRows + 1 - first_panel;
  pool.run([&](int member) {
    const ThreadPool::Range panels = pool.share(touched_panels, member);
    const int begin = std::max(first, (first_panel + panels.begin) * kRows);
    const int end = std::min(first + count, (first_panel + panels.end) * kRows);
    for (int row = begin; row < end; ++row) {
      store_row(source.data() + row_bytes * static_cast<std::size_t>(row - first), row,
                scratch[static_cast<std::size_t>(member)]);
    }
  });
}

void PackedMatrix::unpack_row(int row, float* out) const {
  LLMSRV_CHECK(row >= 0 && row < rows_);
  const std::byte* held_in = panel(row / kRows);
  if (is_quantized(format_)) return load_quantized_row(format_, held_in, row % kRows, cols_, out);
  format_ == WeightFormat::kBf16 ? load_row_bf16(held_in, row % kRows, cols_, out)
                                 : load_row_f32(held_in, row % kRows, cols_, out);
}

}  // namespace llmsrv
