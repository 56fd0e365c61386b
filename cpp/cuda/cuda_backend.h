// An NVIDIA GPU as a Backend, driven through a plug-in's table; the emulated device is such a table too.
//
// Memory: constants (one allocation), workspace and the step's inputs on the device, results and two staging buffers in
// pinned host memory; all taken by hold() and reserve(). Streams: operations run on one, copies between the cache and
// the swap pool on a second; events order the two where one touches what the other does. The host waits in drawn(),
// once per step that samples, in to_host() and in finish(). A step that only decodes is a graph: one call for all of
// its launches. Arithmetic: the residual stream and logits are float. Within a layer float32 mode is float throughout,
// in the CPU's order of sums; otherwise bf16, with float sums. P3 holds for a fixed device and build, unless it is
// given up.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cpp/ops/backend.h"
#include "cpp/ops/plugin.h"

namespace llmsrv {

struct CudaOptions {
  int device_index = 0;
  DType inner_dtype = DType::kBf16;      // or kF32: slower, for weights that are float32
  bool graphs = true;                    // of decode steps
  bool times_steps = false;              // for step_times()
  bool deterministic = true;             // promise P3
  std::optional<int> library_rows = {};  // without it, from so many rows on: tests have smaller steps
};

// Throws DeviceError when the device cannot be used. REQUIRES: table.abi == kPluginAbi; `table` stays valid for good
std::unique_ptr<Backend> make_cuda_backend(const PluginTable& table, const CudaOptions& options);

// What a device has, and what of it is free now.
struct DeviceMemory {
  std::size_t total_bytes = 0;
  std::size_t free_bytes = 0;
};
DeviceMemory cuda_memory(const PluginTable& table, int device_index);

}  // namespace llmsrv
