#include "cpp/cuda/device.h"

#include <stdexcept>

namespace llmsrv {

Device::Device(const PluginTable& table, int index) : table_(table), index_(index) {
  LLMSRV_CHECK(table.abi == kPluginAbi);
  select();
  check(runtime().properties(index_, &properties_));
}

void Device::fail(device::Code code) const {
  const std::string text = table_.last_error();
  if (code == device::Code::kOutOfMemory) throw OutOfDeviceMemory(text);
  if (code == device::Code::kUnsupported) throw std::invalid_argument(text);
  throw DeviceError(text);
}

std::byte* DeviceBuffer::take(const Device& device, std::size_t bytes, MemoryPlace place) {
  void* memory = nullptr;
  if (bytes == 0) return nullptr;
  const bool is_device = place == MemoryPlace::kDevice;
  const device::Code code =
      is_device ? device.runtime().allocate(bytes, &memory) : device.runtime().allocate_pinned(bytes, &memory);
  try {
    device.check(code);
  } catch (const OutOfDeviceMemory& error) {
    throw OutOfDeviceMemory(std::string(error.what()) + " (" + std::to_string(bytes) + " bytes of " +
                            (is_device ? "device memory" : "pinned host memory") + " were asked for)");
  }
  return static_cast<std::byte*>(memory);
}

// A failure here has been told before, by what the memory was used for.
DeviceBuffer::~DeviceBuffer() {
  if (data() == nullptr) return;
  place() == MemoryPlace::kDevice ? device_.runtime().release(data()) : device_.runtime().release_pinned(data());
}

}  // namespace llmsrv
