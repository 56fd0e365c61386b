// What the core says about a CUDA plug-in, at any place and without a driver.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "cpp/engine/cuda_plugin.h"
#include "python/bindings/testing/testing.h"

namespace py = pybind11;

namespace llmsrv::testing {

void register_device(py::module_& module) {
  module.def(
      "cuda_unavailable",
      [](const std::string& path, bool needs_driver) { return cuda_unavailable({path, needs_driver}); },
      py::arg("path"), py::arg("needs_driver"));
}

}  // namespace llmsrv::testing
