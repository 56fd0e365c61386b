// Finds and opens the CUDA plug-in. Nothing of CUDA is linked: a machine without a GPU, or an installation without the
// plug-in, is a sentence and no failure to start.
#pragma once

#include <optional>
#include <string>

namespace llmsrv {

// Where the plug-in is looked for, and whether a driver must be there first.
struct CudaPluginPlace {
  std::string path;          // of libllmsrv_cuda.so
  bool needs_driver = true;  // tests go on without one
};

// The plug-in beside the library that this code is in.
CudaPluginPlace installed_cuda_plugin();

// Why the CUDA backend cannot be used, as the rest of a sentence; nothing when it can. An opened plug-in stays open.
std::optional<std::string> cuda_unavailable(const CudaPluginPlace& place);

}  // namespace llmsrv
