// The emulated kernels for tests: llmsrv._emulated, and with the race checker llmsrv._emulated_race.

#include "cuda/emulation/bindings.h"

#include "cuda/emulation/emulator.h"
#include "cuda/emulation/planted_defects.h"
#include "cuda/emulation/race.h"

namespace py = pybind11;

namespace llmsrv::emulation {
namespace {

void set_order(const std::string& order, std::uint64_t seed) {
  options().seed = seed;
  if (order == "forward") {
    options().order = Order::kForward;
  } else if (order == "reverse") {
    options().order = Order::kReverse;
  } else if (order == "shuffled") {
    options().order = Order::kShuffled;
  } else {
    throw std::invalid_argument("order: forward, reverse or shuffled");
  }
}

py::list sites() {
  py::list result;
  for (const Site& site : reached_sites()) result.append(py::make_tuple(site.file, site.line));
  return result;
}

void bind_emulator(py::module_& module) {
  py::register_local_exception<Error>(module, "EmulationError", PyExc_RuntimeError);
  module.attr("race_checker_built") = race_checker_built();
  module.def("set_order", &set_order, py::arg("order"), py::arg("seed") = 1);
  module.def("leave_out", [](const std::string& file, unsigned line) { options().left_out = {file, line}; });
  module.def("leave_out_nothing", [] { options().left_out = {}; });
  module.def("reached_sites", &sites);
  module.def("forget_sites", [] { reached_sites().clear(); });
  module.def("sum_products_backwards", [](bool backwards) { options().products_sum_backwards = backwards; });
  module.def("watch", [](const py::array& memory, const std::string& name) {
    watch_global(memory.data(), static_cast<std::size_t>(memory.nbytes()), name);
  });
  module.def("unwatch", &unwatch_globals);
  module.def("take_race", [] { return std::exchange(first_race(), {}); });
  module.def(
      "run_planted",
      [](const std::string& name, const py::array& memory) { cuda::run_planted(name, pointer<int>(memory)); },
      py::arg("name"), py::arg("memory"));
}

}  // namespace

void* array_in_reach(void* memory, std::size_t) { return memory; }
void* values_in_reach(void* memory, std::size_t) { return memory; }
cudaStream_t launch_stream() { return nullptr; }

}  // namespace llmsrv::emulation

PYBIND11_MODULE(LLMSRV_EMULATED_MODULE, module) {
  llmsrv::emulation::bind_emulator(module);
  llmsrv::emulation::bind_launches(module);
  llmsrv::emulation::bind_device(module);
  llmsrv::emulation::bind_library(module);
}
