// Dense products by cuBLASLt, or by the library that a test has in its place.
#include "cuda/emulation/bindings.h"
#include "cuda/library/dense_products.h"

namespace py = pybind11;

namespace llmsrv::emulation {
namespace {

cuda::DenseProducts::Options options_of(bool deterministic, const py::object& workspace) {
  if (workspace.is_none()) return {.deterministic = deterministic};
  const auto memory = py::cast<py::array>(workspace);
  return {.deterministic = deterministic,
          .workspace = in_reach(memory),
          .workspace_bytes = static_cast<std::size_t>(memory.nbytes())};
}

// The workspace, if any, stays where kernels find it.
std::unique_ptr<cuda::DenseProducts> make_products(const std::string& soname, const std::vector<std::string>& folders,
                                                   bool deterministic, const py::object& workspace) {
  const cuda::NvidiaLibrary library({soname, folders, "install it"});
  return std::make_unique<cuda::DenseProducts>(cuda::cublaslt::Functions(library),
                                               options_of(deterministic, workspace));
}

cuda::DenseShape shape_of(const py::array& weights, bool float_out) {
  return {rows_of(weights), cols_of(weights), float_out};
}

void multiply(cuda::DenseProducts& products, const py::array& in, const py::array& weights, const py::array& out,
              bool adds) {
  const bool float_out = out.itemsize() == 4;
  products.multiply(
      {.shape = shape_of(weights, float_out),
       .in = matrix_pointer<cuda::Bf16>(in),
       .in_stride = stride_of(in),
       .weights = pointer<cuda::Bf16>(weights),
       .out = float_out ? static_cast<void*>(matrix_pointer<float>(out)) : matrix_pointer<cuda::Bf16>(out),
       .out_stride = stride_of(out),
       .rows = rows_of(in),
       .adds = adds},
      launch_stream());
}

}  // namespace

void bind_products(py::module_& module) {
  py::register_local_exception<cuda::LibraryError>(module, "LibraryError", PyExc_RuntimeError);
  py::class_<cuda::DenseProducts>(module, "DenseProducts", py::module_local())
      .def(py::init(&make_products), py::arg("soname"), py::arg("folders"), py::arg("deterministic"),
           py::arg("workspace") = py::none())
      .def(
          "prepare",
          [](cuda::DenseProducts& products, const py::array& weights, bool float_out, int rows_max) {
            products.prepare(shape_of(weights, float_out), rows_max);
          },
          py::arg("weights"), py::arg("float_out"), py::arg("rows_max"))
      .def("multiply", &multiply, py::arg("in_"), py::arg("weights"), py::arg("out"), py::arg("adds") = false);
}

}  // namespace llmsrv::emulation
