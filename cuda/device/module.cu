// The launches on a device for tests and measurements: llmsrv._device. The same bindings as llmsrv._emulated.

#include "cuda/device/staging.h"
#include "cuda/emulation/bindings.h"

namespace py = pybind11;

namespace llmsrv::on_device {
namespace {

Staging& staging() {
  static Staging* const kStaging = new Staging;  // not freed: at the end of the process the device may be gone
  return *kStaging;
}

int attribute(cudaDeviceAttr which) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, 0), "the device");
  return value;
}

py::dict describe() {
  int count = 0;
  check(cudaGetDeviceCount(&count), "CUDA");
  if (count == 0) throw DeviceError("CUDA: no device");
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "the device");
  int driver = 0;
  int runtime = 0;
  check(cudaDriverGetVersion(&driver), "the driver");
  check(cudaRuntimeGetVersion(&runtime), "the runtime");
  py::dict result;
  result["name"] = std::string(properties.name);
  result["capability"] = std::to_string(properties.major) + "." + std::to_string(properties.minor);
  result["multiprocessors"] = properties.multiProcessorCount;
  result["memory_bytes"] = properties.totalGlobalMem;
  result["l2_bytes"] = properties.l2CacheSize;
  result["shared_bytes_max"] = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  result["driver"] = driver;
  result["runtime"] = runtime;
  return result;
}

// The launches of `function` as a graph. What it takes to launch them is done once, here.
std::unique_ptr<Graph> capture(const py::function& function) {
  check(cudaStreamBeginCapture(kStream, cudaStreamCaptureModeRelaxed), "a capture");
  staging().begin_capture();
  cudaGraph_t graph = nullptr;
  try {
    function();
  } catch (...) {
    cudaStreamEndCapture(kStream, &graph);
    cudaGraphDestroy(graph);
    staging().end_capture();
    throw;
  }
  std::vector<Guarded> memory = staging().end_capture();
  check(cudaStreamEndCapture(kStream, &graph), "a capture");
  cudaGraphExec_t exec = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  check(error, "a graph");
  return std::make_unique<Graph>(exec, std::move(memory));
}

void hold(py::array memory, const std::string& noise) {
  staging().hold(memory.mutable_data(), static_cast<std::size_t>(memory.nbytes()),
                 noise == "bf16" ? Noise::kBf16 : Noise::kBytes);
}

void bind_device(py::module_& module) {
  py::register_local_exception<DeviceError>(module, "DeviceError", PyExc_RuntimeError);
  module.attr("stream") = reinterpret_cast<std::uintptr_t>(kStream);
  module.def("describe", &describe);
  module.def("finish", [] { staging().finish(); });
  module.def("forget", [] { staging().forget(); });
  module.def("hold", &hold, py::arg("memory"), py::arg("noise"));
  module.def("release", [] { staging().release(); });
  module.def("address", [](py::array memory) {
    return reinterpret_cast<std::uintptr_t>(
        staging().place_array(memory.mutable_data(), static_cast<std::size_t>(memory.nbytes())));
  });
  module.def("capture", &capture);
  py::class_<Graph>(module, "Graph").def("milliseconds", &Graph::milliseconds, py::arg("repeats"));
}

}  // namespace
}  // namespace llmsrv::on_device

namespace llmsrv::emulation {

void* array_in_reach(void* memory, std::size_t bytes) { return on_device::staging().place_array(memory, bytes); }
void* values_in_reach(void* memory, std::size_t bytes) { return on_device::staging().place_values(memory, bytes); }
cudaStream_t launch_stream() { return on_device::kStream; }

}  // namespace llmsrv::emulation

PYBIND11_MODULE(_device, module) {
  llmsrv::on_device::bind_device(module);
  llmsrv::emulation::bind_launches(module);
}
