// Finds and opens the CUDA plug-in. Nothing of CUDA is linked: a machine without a GPU, or an installation without the
// plug-in, is a sentence and no failure to start.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "cpp/ops/plugin.h"

namespace llmsrv {

// Where the plug-in is looked for, and whether a driver must be there first.
struct CudaPluginPlace {
  std::string path;          // of libllmsrv_cuda.so
  bool needs_driver = true;  // tests go on without one
};

// The plug-in beside the library that this code is in.
CudaPluginPlace installed_cuda_plugin();

// The table of a plug-in that has a device to work on, or why there is none, as the rest of a sentence. An opened
// plug-in stays open.
std::variant<const PluginTable*, std::string> open_cuda_plugin(const CudaPluginPlace& place);
// Why CUDA cannot be used; nothing when it can.
std::optional<std::string> cuda_unavailable(const CudaPluginPlace& place);

}  // namespace llmsrv
