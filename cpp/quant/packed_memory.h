// Memory of one packed matrix: its own, zeroed and writable, or a part of a mapped file, read only. Move only.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "cpp/base/aligned_buffer.h"
#include "cpp/base/check.h"
#include "cpp/base/mapped_file.h"

namespace llmsrv {

class PackedMemory {
 public:
  PackedMemory() = default;
  explicit PackedMemory(std::size_t bytes) : own_(bytes), data_(own_.data()), bytes_(bytes) {}
  // Keeps the file mapped. REQUIRES: the range lies in the file; offset is a multiple of a cache line
  PackedMemory(std::shared_ptr<const MappedFile> file, std::size_t offset, std::size_t bytes)
      : file_(std::move(file)), data_(file_->bytes().subspan(offset, bytes).data()), bytes_(bytes) {
    LLMSRV_CHECK(offset % 64 == 0);
  }

  const std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }

  // REQUIRES: it is no part of a file
  std::byte* writable_data() {
    LLMSRV_CHECK(file_ == nullptr);
    return own_.data();
  }

 private:
  AlignedBuffer own_;
  std::shared_ptr<const MappedFile> file_;
  const std::byte* data_ = nullptr;  // of either
  std::size_t bytes_ = 0;
};

}  // namespace llmsrv
