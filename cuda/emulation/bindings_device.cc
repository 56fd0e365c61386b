// The emulated device as a plug-in's table, and what a test may want of it.
#include "cuda/emulation/bindings.h"
#include "cuda/emulation/runtime.h"
#include "cuda/emulation/streams.h"

namespace py = pybind11;

namespace llmsrv::emulation {
namespace {

void set_stream_order(const std::string& order) {
  if (order == "late") {
    stream_options().order = StreamOrder::kLate;
  } else if (order == "others first") {
    stream_options().order = StreamOrder::kOthersFirst;
  } else {
    throw std::invalid_argument("order: late or others first");
  }
}

void set_device(std::size_t memory_bytes, std::optional<std::int64_t> good_synchronizations, bool is_hopper,
                bool has_library) {
  device_options().memory_bytes = memory_bytes;
  device_options().is_hopper = is_hopper;
  device_options().has_library = has_library;
  device_options().good_synchronizations = good_synchronizations;
  if (good_synchronizations) {
    *device_options().good_synchronizations += static_cast<std::int64_t>(device_counts().synchronizations);
  }
}

}  // namespace

void bind_device(py::module_& module) {
  module.def("plugin_table", [] { return py::capsule(&plugin_table(), "llmsrv.PluginTable"); });
  module.def("set_stream_order", &set_stream_order, py::arg("order"));
  module.def("leave_out_wait", [](const std::string& wait) { stream_options().left_out = wait; }, py::arg("wait"));
  module.def("reached_waits", [] { return reached_waits(); });
  module.def("forget_waits", [] { reached_waits().clear(); });
  module.def("set_device", &set_device, py::kw_only(), py::arg("memory_bytes") = DeviceOptions().memory_bytes,
             py::arg("good_synchronizations") = std::nullopt, py::arg("is_hopper") = false,
             py::arg("has_library") = true);
  module.def("library_counts", [] {
    const cuda::NvidiaLibrary library = stand_in_library();
    return py::dict(py::arg("searches") = library.function<int()>("stand_in_searches")(),
                    py::arg("products") = library.function<int()>("stand_in_products")());
  });
  module.def("device_counts", [] {
    const DeviceCounts& counts = device_counts();
    return py::dict(py::arg("held_bytes") = counts.held_bytes, py::arg("allocations") = counts.allocations,
                    py::arg("synchronizations") = counts.synchronizations, py::arg("copies") = counts.copies,
                    py::arg("graph_launches") = counts.graph_launches,
                    py::arg("warp_group_products") = counts.warp_group_products);
  });
}

}  // namespace llmsrv::emulation
