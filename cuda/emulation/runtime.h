// The device's runtime over host memory: a plug-in's table whose device is the emulator. Memory that nobody wrote is
// full of NaN.
// Thread rule: any thread; options and counts while nobody else is here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "cpp/ops/plugin.h"
#include "cuda/library/nvidia_library.h"

namespace llmsrv::emulation {

struct DeviceOptions {
  std::size_t memory_bytes = std::size_t{1} << 30;         // allocations beyond it fail
  std::optional<std::int64_t> good_synchronizations = {};  // then the device is gone
  bool is_hopper = false;                                  // an Ampere otherwise
  bool has_library = true;                                 // the stand-in for cuBLASLt
};
DeviceOptions& device_options();

// Since the program started. Bytes are those of device memory.
struct DeviceCounts {
  std::size_t held_bytes = 0;
  std::uint64_t allocations = 0;       // pinned ones too
  std::uint64_t synchronizations = 0;  // in which the host had to wait
  std::uint64_t copies = 0;
  std::uint64_t graph_launches = 0;
  std::uint64_t warp_group_products = 0;  // of each thread
};
DeviceCounts& device_counts();

const PluginTable& plugin_table();
// Throws LibraryError where the options say that there is none.
cuda::NvidiaLibrary stand_in_library();

}  // namespace llmsrv::emulation
