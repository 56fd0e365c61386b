// Memory that a backend gave, for activations, keys and values. Who asked for it owns it; the backend outlives it.
#pragma once

#include <cstddef>
#include <utility>

#include "cpp/base/aligned_buffer.h"

namespace llmsrv {

// kDevice: where operations read and write. kHost: the host's, where the device's copies reach it.
enum class MemoryPlace { kDevice, kHost };

class Buffer {
 public:
  virtual ~Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  MemoryPlace place() const { return place_; }
  // The pages, where the system gave them and takes them back; none of a device's own memory.
  virtual AlignedBuffer* pages() { return nullptr; }

 protected:
  Buffer(std::byte* data, std::size_t bytes, MemoryPlace place) : data_(data), bytes_(bytes), place_(place) {}

 private:
  std::byte* data_;
  std::size_t bytes_;
  MemoryPlace place_;
};

// Of a device that works on the host's memory. Zeroed.
class HostBuffer final : public Buffer {
 public:
  HostBuffer(std::size_t bytes, MemoryPlace place) : HostBuffer(AlignedBuffer(bytes), place) {}
  AlignedBuffer* pages() override { return &memory_; }

 private:
  HostBuffer(AlignedBuffer memory, MemoryPlace place)
      : Buffer(memory.data(), memory.size(), place), memory_(std::move(memory)) {}
  AlignedBuffer memory_;
};

}  // namespace llmsrv
