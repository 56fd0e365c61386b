// Chooses the device. The only place that names one.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cpp/base/thread_pool.h"
#include "cpp/model/weight_formats.h"
#include "cpp/ops/backend.h"

namespace llmsrv {

enum class DeviceKind { kCpu, kCuda };

struct DeviceOptions {
  DeviceKind kind = DeviceKind::kCpu;
  std::string isa;            // as for make_backend()
  bool times_steps = false;   // a GPU's, for Engine::step_times()
  bool deterministic = true;  // promise P3; the CPU keeps it anyway
};

// The CPU. `isa` forces a kernel table; empty lets the environment (LLMSRV_ISA), then the machine decide.
// Throws std::invalid_argument for an impossible choice. `pool` must outlive the backend.
std::unique_ptr<Backend> make_backend(ThreadPool& pool, const std::string& isa);
// Any device; `formats` are those of the weights that it will work with. Throws std::invalid_argument also for a device
// that cannot be used here.
std::unique_ptr<Backend> make_backend(ThreadPool& pool, const DeviceOptions& device, const WeightFormats& formats);

// CPU kernel tables that this machine can run, best first.
std::vector<std::string> available_isas();

// Bytes of the CUDA device's memory: all, and those that are free now. Throws std::invalid_argument where none can be
// used.
std::pair<std::size_t, std::size_t> cuda_memory_bytes();

}  // namespace llmsrv
