#include "cpp/engine/backends.h"

#include <algorithm>
#include <stdexcept>
#include <variant>

#include "cpp/cpu/cpu_backend.h"
#include "cpp/cpu/isa.h"
#include "cpp/cuda/cuda_backend.h"
#include "cpp/engine/cuda_plugin.h"

namespace llmsrv {
namespace {

// The first of those that the driver shows: CUDA_VISIBLE_DEVICES chooses.
constexpr int kDeviceIndex = 0;

const PluginTable& cuda_table() {
  const auto opened = open_cuda_plugin(installed_cuda_plugin());
  if (const std::string* why = std::get_if<std::string>(&opened)) {
    throw std::invalid_argument("device cuda cannot be used: " + *why);
  }
  return *std::get<const PluginTable*>(opened);
}

}  // namespace

std::unique_ptr<Backend> make_backend(ThreadPool& pool, const std::string& isa) {
  return make_cpu_backend(pool, isa.empty() ? cpu_isa_from_environment() : isa);
}

std::unique_ptr<Backend> make_backend(ThreadPool& pool, const DeviceOptions& device, const WeightFormats& formats) {
  if (device.kind == DeviceKind::kCpu) {
    if (device.times_steps) throw std::invalid_argument("times_steps is for a GPU: a CPU's steps have no gaps");
    return make_backend(pool, device.isa);
  }
  const bool all_float =
      std::all_of(formats.begin(), formats.end(), [](const auto& each) { return each.second == WeightFormat::kF32; });
  return make_cuda_backend(cuda_table(), {.device_index = kDeviceIndex,
                                          .inner_dtype = all_float ? DType::kF32 : DType::kBf16,
                                          .times_steps = device.times_steps,
                                          .deterministic = device.deterministic});
}

std::vector<std::string> available_isas() { return available_cpu_isas(); }

std::pair<std::size_t, std::size_t> cuda_memory_bytes() {
  const DeviceMemory memory = cuda_memory(cuda_table(), kDeviceIndex);
  return {memory.total_bytes, memory.free_bytes};
}

}  // namespace llmsrv
