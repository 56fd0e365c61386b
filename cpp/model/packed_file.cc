#include "cpp/model/packed_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ostream>
#include <span>
#include <sstream>
#include <system_error>
#include <vector>

#include "cpp/base/aligned_buffer.h"
#include "cpp/base/check.h"

namespace llmsrv {
namespace {

// Raised whenever the same checkpoint gives other bytes: a changed layout, order of pieces, or way to quantize.
constexpr int kVersion = 1;
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kLineBytes = 64;
// Written in pieces of a huge page, a file is also held in huge pages, where the file system can: mapping it then costs
// nothing, and it is read as fast as anonymous memory. Small pages give half of the speed.
constexpr std::size_t kWriteBytes = std::size_t{8} << 20;

constexpr WeightFormat kFormats[] = {WeightFormat::kU4,     WeightFormat::kU4Zero, WeightFormat::kU5,
                                     WeightFormat::kU5Zero, WeightFormat::kS8,     WeightFormat::kU4K,
                                     WeightFormat::kU5K,    WeightFormat::kU6K,    WeightFormat::kU4G64,
                                     WeightFormat::kU4G128, WeightFormat::kS8G64,  WeightFormat::kS8G128};

std::size_t rounded_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::span<const std::byte> bytes_of(const Weights::Piece& piece) {
  return piece.matrix != nullptr ? piece.matrix->data() : std::as_bytes(std::span<const float>(*piece.vector));
}

void put_layout(std::ostream& text) {
  text << "layout " << packed::kPanelRows << " " << packed::kGroupCols << " " << packed::kLineBytes;
  for (const WeightFormat format : kFormats) {
    const packed::Superblock& block = superblock_of(format);
    text << "; " << weight_format_name(format) << " " << scale_cols(format);
    for (const int place : {block.groups, block.high, block.scales, block.mins, block.d, block.d_min, block.bytes}) {
      text << " " << place;
    }
  }
  text << "\n";
}

void put_piece(std::ostream& text, const Weights::Piece& piece) {
  text << piece.name;
  if (piece.matrix != nullptr) {
    text << " " << weight_format_name(piece.matrix->format()) << " " << piece.matrix->rows() << " x "
         << piece.matrix->cols();
  } else {
    text << " float " << piece.vector->size();
  }
}

// Where everything stands in the file.
struct FileLayout {
  std::string text;  // padded
  std::vector<Weights::Piece> pieces;
  std::vector<std::size_t> offsets;  // one per piece
  std::size_t bytes;
};

FileLayout layout_of(Weights& weights, const std::string& key) {
  FileLayout layout{packed_file_text(weights, key), weights.pieces(), {}, 0};
  layout.text.resize(rounded_up(layout.text.size() + 1, kPageBytes), '\0');
  std::size_t at = layout.text.size();
  for (const Weights::Piece& piece : layout.pieces) {
    layout.offsets.push_back(at);
    at += rounded_up(bytes_of(piece).size(), kLineBytes);
  }
  layout.bytes = at;
  return layout;
}

// Collects what is written, so that the system gets it in large pieces. The first failure stays.
class Writer {
 public:
  explicit Writer(int file_number) : file_number_(file_number), buffer_(kWriteBytes) {}

  void append(std::span<const std::byte> data) {
    while (!data.empty()) {
      const std::size_t count = std::min(data.size(), kWriteBytes - held_);
      std::memcpy(buffer_.data() + held_, data.data(), count);
      data = data.subspan(count);
      held_ += count;
      if (held_ == kWriteBytes) flush();
    }
  }

  void flush() {
    for (std::size_t done = 0; done < held_ && error_ == 0;) {
      const ssize_t count = write(file_number_, buffer_.data() + done, held_ - done);
      if (count < 0 && errno != EINTR) error_ = errno;
      if (count > 0) done += static_cast<std::size_t>(count);
    }
    written_ += held_;
    held_ = 0;
  }

  std::size_t position() const { return written_ + held_; }
  int error() const { return error_; }

 private:
  int file_number_;
  AlignedBuffer buffer_;
  std::size_t held_ = 0;
  std::size_t written_ = 0;
  int error_ = 0;
};

}  // namespace

std::string packed_file_text(Weights& weights, const std::string& key) {
  std::ostringstream text;
  text << "llmsrv packed weights, version " << kVersion << "\n";
  put_layout(text);
  text << key << "\n";
  std::size_t bytes = 0;
  for (const Weights::Piece& piece : weights.pieces()) {
    put_piece(text, piece);
    text << " at " << bytes << "\n";
    bytes += rounded_up(bytes_of(piece).size(), kLineBytes);
  }
  text << "end at " << bytes << "\n";
  return text.str();
}

std::optional<std::string> write_packed_file(Weights& weights, const std::string& key, int file_number) {
  LLMSRV_CHECK(weights.missing().empty());
  const FileLayout layout = layout_of(weights, key);
  constexpr std::byte kZeros[kLineBytes] = {};
  Writer writer(file_number);
  writer.append(std::as_bytes(std::span(layout.text)));
  for (const Weights::Piece& piece : layout.pieces) {
    writer.append(bytes_of(piece));
    writer.append(std::span(kZeros).first(rounded_up(writer.position(), kLineBytes) - writer.position()));
  }
  writer.flush();
  if (writer.error() != 0) return std::generic_category().message(writer.error());
  return std::nullopt;
}

std::optional<std::string> map_packed_file(Weights& weights, const std::string& key,
                                           const std::shared_ptr<const MappedFile>& file) {
  const FileLayout layout = layout_of(weights, key);
  const std::span<const std::byte> found = file->bytes();
  if (found.size() < layout.text.size()) return "it is too short";
  if (std::memcmp(found.data(), layout.text.data(), layout.text.size()) != 0) {
    return "it is not of this model, these options and this version";
  }
  if (found.size() != layout.bytes) {
    return "its size is not the one that its text says";
  }
  for (std::size_t index = 0; index < layout.pieces.size(); ++index) {
    const Weights::Piece& piece = layout.pieces[index];
    if (piece.matrix != nullptr) {
      piece.matrix->map(file, layout.offsets[index]);
    } else {
      std::memcpy(piece.vector->data(), found.data() + layout.offsets[index], piece.vector->size() * sizeof(float));
    }
  }
  weights.all_set();
  return std::nullopt;
}

}  // namespace llmsrv
