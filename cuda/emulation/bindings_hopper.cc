#include "cuda/conformance/hopper.h"
#include "cuda/emulation/bindings.h"
#include "cuda/launch/attention_hopper.h"

namespace py = pybind11;

namespace llmsrv::emulation {
namespace {

void try_copy_box(const py::array& matrix, int box_rows, int col, int row, const py::array& out) {
  cuda::try_copy_box({{pointer<cuda::Bf16>(matrix), static_cast<std::uint64_t>(rows_of(matrix)),
                       static_cast<std::uint64_t>(cols_of(matrix)), static_cast<std::uint32_t>(box_rows)},
                      col,
                      row},
                     reinterpret_cast<uint4*>(pointer<std::uint16_t>(out)), nullptr);
}

void try_product(const py::array& a, const py::array& image, std::uint64_t descriptor, std::uint32_t start, bool across,
                 const py::array& d) {
  cuda::try_product({pointer<std::uint16_t>(a), reinterpret_cast<const uint4*>(pointer<std::uint16_t>(image)),
                     descriptor, start, across, pointer<float>(d)},
                    nullptr);
}

}  // namespace

void bind_hopper(py::module_& module) {
  module.def(
      "compare_products",
      [](int blocks, const py::array& unequal) { cuda::compare_products(blocks, pointer<int>(unequal), nullptr); },
      py::arg("blocks"), py::arg("unequal"));
  module.def("try_copy_box", &try_copy_box, py::arg("matrix"), py::arg("box_rows"), py::arg("col"), py::arg("row"),
             py::arg("out"));
  module.def("try_product", &try_product, py::arg("a"), py::arg("image"), py::arg("descriptor"), py::arg("start"),
             py::arg("across"), py::arg("d"));
  module.def("has_hopper_prefill", &cuda::has_hopper_prefill, py::arg("head_dim"), py::arg("block_size"));
}

}  // namespace llmsrv::emulation
