// Two pinned buffers that the host fills in turn: one while the device may still read the other.
// Thread rule: as the backend.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "cpp/base/check.h"
#include "cpp/cuda/device.h"

namespace llmsrv {

class Staging {
 public:
  // `bytes`: of each buffer.
  Staging(const Device& device, std::size_t bytes) {
    for (std::unique_ptr<Half>& half : halves_) half = std::make_unique<Half>(device, bytes);
  }

  std::size_t size() const { return halves_.front()->memory.size(); }
  // The buffer to be filled next, once the device has its copy of what stood there.
  std::byte* next() {
    Half& half = *halves_[next_];
    half.copied.synchronize();
    return half.memory.data();
  }
  // Has the device copy the first bytes of that buffer, behind what `stream` has to do; then it is the other one's
  // turn.
  void copy(void* to, std::size_t bytes, const DeviceStream& stream) {
    Half& half = *halves_[next_];
    LLMSRV_CHECK(bytes <= half.memory.size());
    stream.copy(to, half.memory.data(), bytes);
    half.copied.record(stream);
    next_ = 1 - next_;
  }

 private:
  struct Half {
    Half(const Device& device, std::size_t bytes) : memory(device, bytes, MemoryPlace::kHost), copied(device) {}
    DeviceBuffer memory;
    DeviceEvent copied;  // the device has its copy
  };
  std::array<std::unique_ptr<Half>, 2> halves_;
  std::size_t next_ = 0;
};

}  // namespace llmsrv
