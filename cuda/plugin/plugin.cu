// The CUDA plug-in's one exported function.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

#include "cpp/ops/plugin.h"

namespace {

int count_devices(char* why, std::size_t why_bytes) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  const char* reason = error == cudaSuccess ? "no CUDA device" : cudaGetErrorString(error);
  const std::size_t length = std::min(std::strlen(reason), why_bytes - 1);
  std::memcpy(why, reason, length);
  why[length] = '\0';
  return 0;
}

constexpr llmsrv::PluginTable kTable{llmsrv::kPluginAbi, &count_devices};

}  // namespace

extern "C" __attribute__((visibility("default"))) const llmsrv::PluginTable* llmsrv_plugin() { return &kTable; }
