// The device's copy of all constants in host memory, found by their host addresses.
// Thread rule: read only once it is made.
#pragma once

#include <cstddef>
#include <span>
#include <unordered_map>

#include "cpp/cuda/device.h"

namespace llmsrv {

class Constants {
 public:
  // Bytes of device memory that the copy takes.
  static std::size_t bytes(std::span<const std::span<const std::byte>> constants);
  // Copies, and waits for the end of it.
  Constants(const Device& device, std::span<const std::span<const std::byte>> constants, const DeviceStream& stream);

  // Where a constant, or a row in it, stands on the device; nullptr for an empty one. REQUIRES: `host` is the address
  // of one that was copied
  template <typename T>
  const T* of(std::span<const T> host) const {
    return host.empty() ? nullptr : reinterpret_cast<const T*>(find(host.data()));
  }

 private:
  const std::byte* find(const void* host) const;

  DeviceBuffer memory_;
  std::unordered_map<const void*, std::size_t> offsets_;
};

}  // namespace llmsrv
