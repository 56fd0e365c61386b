// Owns zeroed memory aligned to a cache line; large buffers ask the system for huge pages. Move only.
#pragma once

#include <cstddef>
#include <utility>

namespace llmsrv {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t bytes);  // throws std::bad_alloc
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  // Gives the pages back to the system, the addresses stay. The contents become zero; the next touch takes a page
  // again.
  void give_back();

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace llmsrv
