// The CUDA plug-in's one exported function.
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstring>

#include "cuda/plugin/last_error.h"
#include "cuda/plugin/launches.h"
#include "cuda/plugin/products.h"
#include "cuda/plugin/runtime.h"

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

}  // namespace

namespace llmsrv::cuda {

cublaslt::Functions open_cublaslt() {
  Dl_info here{};
  dladdr(reinterpret_cast<const void*>(&count_devices), &here);
  return cublaslt::Functions(NvidiaLibrary(cublaslt::search_beside(here.dli_fname)));
}

}  // namespace llmsrv::cuda

extern "C" __attribute__((visibility("default"))) const llmsrv::PluginTable* llmsrv_plugin() {
  static const llmsrv::PluginTable table{llmsrv::kPluginAbi,
                                         &count_devices,
                                         &llmsrv::cuda::runtime_table(),
                                         &llmsrv::cuda::launch_table(),
                                         &llmsrv::cuda::product_table(),
                                         &llmsrv::cuda::last_error};
  return &table;
}
