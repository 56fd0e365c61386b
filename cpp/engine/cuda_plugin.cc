#include "cpp/engine/cuda_plugin.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <filesystem>

namespace llmsrv {
namespace {

constexpr const char* kDriver = "libcuda.so.1";
constexpr const char* kPluginFile = "libllmsrv_cuda.so";

bool has_driver() {
  void* driver = dlopen(kDriver, RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return false;
  dlclose(driver);
  return true;
}

}  // namespace

CudaPluginPlace installed_cuda_plugin() {
  Dl_info here{};
  dladdr(reinterpret_cast<const void*>(&installed_cuda_plugin), &here);
  return {(std::filesystem::path(here.dli_fname).parent_path() / kPluginFile).string()};
}

std::variant<const PluginTable*, std::string> open_cuda_plugin(const CudaPluginPlace& place) {
  if (place.needs_driver && !has_driver()) return std::string("there is no NVIDIA driver here (") + kDriver + ")";
  if (!std::filesystem::exists(place.path)) {
    return "this installation has no CUDA plug-in; LLMSRV_CUDA=1 pip install builds one from the sources";
  }
  void* library = dlopen(place.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::string("the CUDA plug-in does not load: ") + dlerror();
  const auto function = reinterpret_cast<PluginFunction>(dlsym(library, kPluginSymbol));
  if (function == nullptr) return place.path + " is no plug-in of llmsrv";
  const PluginTable* table = function();
  if (table->abi != kPluginAbi) {
    return "the CUDA plug-in belongs to another version (interface " + std::to_string(table->abi) + ", not " +
           std::to_string(kPluginAbi) + ")";
  }
  std::array<char, 256> why{};
  if (table->count_devices(why.data(), why.size()) == 0) return std::string(why.data());
  return table;
}

std::optional<std::string> cuda_unavailable(const CudaPluginPlace& place) {
  const auto opened = open_cuda_plugin(place);
  const std::string* why = std::get_if<std::string>(&opened);
  return why != nullptr ? std::optional(*why) : std::nullopt;
}

}  // namespace llmsrv
