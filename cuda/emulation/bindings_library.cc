#include "cuda/emulation/bindings.h"
#include "cuda/emulation/runtime.h"
#include "cuda/library/nvidia_library.h"

namespace py = pybind11;

namespace llmsrv::emulation {
namespace {

device::Rows table_rows(const py::array& rows) {
  const auto type = rows.itemsize() == 4 ? device::Element::kF32 : device::Element::kBf16;
  return {const_cast<void*>(rows.data()), type, rows_of(rows), cols_of(rows), stride_of(rows)};
}

// The two name the same formats in the same order.
device::Packing packing_named(const std::string& format) {
  static_assert(static_cast<int>(device::Packing::kU6K) == static_cast<int>(cuda::PackedFormat::kU6K));
  return static_cast<device::Packing>(format_named(format));
}

// A linear layer through the table of products, with room for so many bytes of weights at once.
void product_linear(const py::array& in, const py::array& panels, const py::object& bias, const py::array& out,
                    const std::string& format, bool adds, std::size_t unpacked_bytes) {
  const device::ProductTable& table = *plugin_table().products;
  std::vector<std::uint64_t> unpacked(unpacked_bytes / sizeof(std::uint64_t));
  const device::ProductOptions options{nullptr, 0, unpacked.data(), unpacked_bytes, rows_of(in)};
  const device::Linear linear{
      table_rows(in),
      {panels.data(), static_cast<std::size_t>(cols_of(panels)), packing_named(format), cols_of(out), cols_of(in)},
      pointer_or_null<float>(bias),
      table_rows(out),
      adds ? 1 : 0};
  device::Products products = nullptr;
  device::Code code = table.create(&options, &products);
  if (code == device::Code::kOk) code = table.linear(products, &linear, nullptr);
  table.destroy(products);
  if (code == device::Code::kUnsupported) throw std::invalid_argument(plugin_table().last_error());
  if (code != device::Code::kOk) throw std::runtime_error(plugin_table().last_error());
}

}  // namespace

void bind_library(py::module_& module) {
  module.def("wheel_folders", &cuda::wheel_folders);
  module.def("living_communicators", [](const std::string& soname, const std::vector<std::string>& folders) {
    return cuda::NvidiaLibrary({soname, folders, "build it"}).function<int()>("stand_in_communicators")();
  });
  module.def("library_path", [](const std::string& soname, const std::vector<std::string>& folders) {
    return cuda::NvidiaLibrary({soname, folders, "pip install it"}).path();
  });
  module.def("product_linear", &product_linear, py::arg("in_"), py::arg("weights"), py::arg("bias"), py::arg("out"),
             py::arg("format"), py::arg("adds"), py::arg("unpacked_bytes"));
}

}  // namespace llmsrv::emulation
