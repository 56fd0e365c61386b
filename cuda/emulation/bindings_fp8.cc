#include "cuda/emulation/bindings.h"
#include "cuda/launch/fp8_linear.h"

namespace py = pybind11;

namespace llmsrv::emulation {
namespace {

using cuda::Bf16;
using cuda::Fp8;

// Products of fp8 by the library of a file. The workspace outlives it.
struct Fp8Products {
  cuda::NvidiaLibrary library;
  cuda::DenseProducts products;

  Fp8Products(const cuda::LibrarySearch& search, const py::array& workspace, bool deterministic)
      : library(search),
        products(cuda::cublaslt::Functions(library),
                 {deterministic, in_reach(workspace), static_cast<std::size_t>(workspace.nbytes())}) {}
};

// Calls f with a value of the element type: float for 4-byte elements, Bf16 for 2.
template <typename F>
void with_type_of(const py::array& memory, const F& f) {
  memory.itemsize() == 4 ? f(float{}) : f(Bf16{});
}

void quantize_rows(const py::array& in, const py::array& out, const py::array& scales) {
  with_type_of(in, [&]<typename T>(T) {
    cuda::quantize_rows<T>({matrix_pointer<T>(in), stride_of(in), matrix_pointer<Fp8>(out), stride_of(out),
                            pointer<float>(scales), rows_of(in), cols_of(in)},
                           nullptr);
  });
}

void scale_products(const py::array& products, const py::array& row_scales, const py::array& col_scales,
                    const py::object& bias, const py::array& out, bool adds) {
  with_type_of(out, [&]<typename T>(T) {
    cuda::scale_products<T>(
        {matrix_pointer<float>(products), stride_of(products), pointer<float>(row_scales), pointer<float>(col_scales),
         pointer_or_null<float>(bias), matrix_pointer<T>(out), stride_of(out), rows_of(out), cols_of(out), adds},
        nullptr);
  });
}

void fp8_linear(Fp8Products& products, const py::array& in, const py::array& weights, const py::array& weight_scales,
                const py::object& bias, const py::array& out, const py::array& quantized, const py::array& scales,
                const py::array& sums, bool adds) {
  with_type_of(in, [&]<typename T>(T) {
    cuda::Fp8LinearParams<T> params;
    params.in = matrix_pointer<T>(in);
    params.in_stride = stride_of(in);
    params.cols = cols_of(in);
    params.weights = pointer<Fp8>(weights);
    params.weight_scales = pointer<float>(weight_scales);
    params.bias = pointer_or_null<float>(bias);
    params.out = matrix_pointer<T>(out);
    params.out_stride = stride_of(out);
    params.outputs = cols_of(out);
    params.rows = rows_of(in);
    params.adds = adds;
    params.quantized = pointer<Fp8>(quantized);
    params.scales = pointer<float>(scales);
    params.sums = pointer<float>(sums);
    cuda::fp8_linear(products.products, params, launch_stream());
  });
}

}  // namespace

void bind_fp8(py::module_& module) {
  module.def("quantize_rows", &quantize_rows, py::arg("in_"), py::arg("out"), py::arg("scales"));
  module.def("scale_products", &scale_products, py::arg("products"), py::arg("row_scales"), py::arg("col_scales"),
             py::arg("bias"), py::arg("out"), py::arg("adds"));
  py::class_<Fp8Products>(module, "Fp8Products")
      .def(py::init([](const std::string& soname, const std::vector<std::string>& folders, const py::array& workspace,
                       bool deterministic) {
             return std::make_unique<Fp8Products>(cuda::LibrarySearch{soname, folders, "install it"}, workspace,
                                                  deterministic);
           }),
           py::arg("soname"), py::arg("folders"), py::arg("workspace"), py::arg("deterministic"))
      .def(
          "prepare",
          [](Fp8Products& products, int outputs, int cols, int rows_max) {
            products.products.prepare(cuda::fp8_shape(outputs, cols), rows_max);
          },
          py::arg("outputs"), py::arg("cols"), py::arg("rows_max"));
  module.def("fp8_linear", &fp8_linear, py::arg("products"), py::arg("in_"), py::arg("weights"),
             py::arg("weight_scales"), py::arg("bias"), py::arg("out"), py::arg("quantized"), py::arg("scales"),
             py::arg("sums"), py::arg("adds"));
}

}  // namespace llmsrv::emulation
