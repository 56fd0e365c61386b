#include "cuda/emulation/bindings.h"
#include "cuda/library/dense_products.h"

namespace py = pybind11;

namespace llmsrv::emulation {
namespace {

// Dense products by the library of a file.
struct TestProducts {
  cuda::NvidiaLibrary library;
  cuda::DenseProducts products;

  TestProducts(const cuda::LibrarySearch& search, bool deterministic)
      : library(search), products(cuda::cublaslt::Functions(library), {deterministic, nullptr, 0}) {}
};

cuda::DenseShape shape_of(const py::array& weights, bool float_out) {
  return {rows_of(weights), cols_of(weights), float_out};
}

void multiply(TestProducts& test, const py::array& in, const py::array& weights, py::array out, bool adds) {
  cuda::DenseProduct product;
  product.shape = shape_of(weights, out.itemsize() == 4);
  product.in = matrix_pointer<cuda::Bf16>(in);
  product.in_stride = stride_of(in);
  product.weights = pointer<cuda::Bf16>(weights);
  product.out = out.mutable_data();
  product.out_stride = stride_of(out);
  product.rows = rows_of(in);
  product.adds = adds;
  test.products.multiply(product, nullptr);
}

}  // namespace

void bind_library(py::module_& module) {
  py::register_local_exception<cuda::LibraryError>(module, "LibraryError", PyExc_RuntimeError);
  module.def("wheel_folders", &cuda::wheel_folders);
  module.def("library_path", [](const std::string& soname, const std::vector<std::string>& folders) {
    return cuda::NvidiaLibrary({soname, folders, "pip install it"}).path();
  });
  py::class_<TestProducts>(module, "DenseProducts")
      .def(py::init([](const std::string& soname, const std::string& folder, bool deterministic) {
             return std::make_unique<TestProducts>(cuda::LibrarySearch{soname, {folder}, "build it"}, deterministic);
           }),
           py::arg("soname"), py::arg("folder"), py::arg("deterministic"))
      .def_property_readonly(
          "searches", [](const TestProducts& test) { return test.library.function<int()>("stand_in_searches")(); })
      .def("prepare", [](TestProducts& test, const py::array& weights, bool float_out,
                         int rows_max) { test.products.prepare(shape_of(weights, float_out), rows_max); })
      .def("multiply", &multiply, py::arg("in_"), py::arg("weights"), py::arg("out"), py::arg("adds") = false);
}

}  // namespace llmsrv::emulation
