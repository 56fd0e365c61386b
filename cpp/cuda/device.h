// The plug-in's tables as objects that own what they made and turn failures into exceptions.
//
// Failures: OutOfDeviceMemory while memory is taken, std::invalid_argument for a shape without a kernel, DeviceError
// for everything else. Thread rule: as the backend, which is the only user. A Device outlives what it made.
#pragma once

#include <cstddef>
#include <string>

#include "cpp/base/check.h"
#include "cpp/ops/plugin.h"
#include "cpp/tensor/buffer.h"

namespace llmsrv {

class OutOfDeviceMemory : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

class Device {
 public:
  // `table` stays valid for good.
  Device(const PluginTable& table, int index);

  const device::Properties& properties() const { return properties_; }
  const device::LaunchTable& launches() const { return *table_.launches; }
  const device::ProductTable& products() const { return *table_.products; }
  const device::RuntimeTable& runtime() const { return *table_.runtime; }
  // Makes this device the calling thread's.
  void select() const { check(runtime().select(index_)); }
  // Throws what a code means.
  void check(device::Code code) const {
    if (code != device::Code::kOk) fail(code);
  }

 private:
  [[noreturn]] void fail(device::Code code) const;

  const PluginTable& table_;
  const int index_;
  device::Properties properties_{};
};

// Memory of the device, or pinned memory of the host. No bytes: no memory.
class DeviceBuffer final : public Buffer {
 public:
  DeviceBuffer(const Device& device, std::size_t bytes, MemoryPlace place)
      : Buffer(take(device, bytes, place), bytes, place), device_(device) {}
  ~DeviceBuffer() override;

 private:
  static std::byte* take(const Device& device, std::size_t bytes, MemoryPlace place);
  const Device& device_;
};

class DeviceStream {
 public:
  explicit DeviceStream(const Device& device) : device_(device) {
    device.check(device.runtime().create_stream(&handle_));
  }
  ~DeviceStream() { device_.runtime().destroy_stream(handle_); }
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  device::Stream handle() const { return handle_; }
  void copy(void* to, const void* from, std::size_t bytes) const {
    device_.check(device_.runtime().copy(to, from, bytes, handle_));
  }
  // The caller waits.
  void synchronize() const { device_.check(device_.runtime().synchronize(handle_)); }

 private:
  const Device& device_;
  device::Stream handle_ = nullptr;
};

// A point in a stream's work. Until it is recorded nobody waits for it.
class DeviceEvent {
 public:
  enum class Kind { kPlain, kTimed };
  explicit DeviceEvent(const Device& device, Kind kind = Kind::kPlain) : device_(device) {
    const device::RuntimeTable& runtime = device.runtime();
    device.check(kind == Kind::kTimed ? runtime.create_timed_event(&handle_) : runtime.create_event(&handle_));
  }
  ~DeviceEvent() { device_.runtime().destroy_event(handle_); }
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;

  void record(const DeviceStream& stream) const { device_.check(device_.runtime().record(handle_, stream.handle())); }
  // What `stream` is given from now on waits.
  void hold_up(const DeviceStream& stream) const { device_.check(device_.runtime().wait(stream.handle(), handle_)); }
  // The caller waits.
  void synchronize() const { device_.check(device_.runtime().synchronize_event(handle_)); }
  // Time of the device up to `later`. REQUIRES: both are timed, and were reached
  double seconds_until(const DeviceEvent& later) const {
    double seconds = 0.0;
    device_.check(device_.runtime().elapsed_s(handle_, later.handle_, &seconds));
    return seconds;
  }

 private:
  const Device& device_;
  device::Event handle_ = nullptr;
};

}  // namespace llmsrv
