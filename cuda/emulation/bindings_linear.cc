#include <array>

#include "cuda/emulation/bindings.h"
#include "cuda/launch/linear.h"

namespace py = pybind11;

namespace llmsrv::emulation {

cuda::PackedFormat format_named(const std::string& name) {
  using F = cuda::PackedFormat;
  constexpr std::array<std::pair<const char*, F>, 12> kNames = {{{"f32", F::kF32},
                                                                 {"bf16", F::kBf16},
                                                                 {"q4_1", F::kU4},
                                                                 {"q4_0", F::kU4Zero},
                                                                 {"q5_1", F::kU5},
                                                                 {"q5_0", F::kU5Zero},
                                                                 {"q8_0", F::kS8},
                                                                 {"q4_k", F::kU4K},
                                                                 {"q5_k", F::kU5K},
                                                                 {"q6_k", F::kU6K},
                                                                 {"int4-g64", F::kU4G64},
                                                                 {"int4-g128", F::kU4G128}}};
  for (const auto& [known, format] : kNames) {
    if (name == known) return format;
  }
  throw std::invalid_argument("no such packed format: " + name);
}

namespace {

template <typename Out, typename In>
cuda::PackedLinearParams<Out, In> linear_params(const py::array& in, const py::array& weights, const py::object& bias,
                                                const py::array& out, bool adds) {
  cuda::PackedLinearParams<Out, In> params;
  params.in = matrix_pointer<In>(in);
  params.in_stride = stride_of(in);
  params.cols = cols_of(in);
  params.weights = pointer<unsigned char>(weights);
  params.panel_bytes = static_cast<std::size_t>(cols_of(weights));
  params.bias = pointer_or_null<float>(bias);
  params.out = matrix_pointer<Out>(out);
  params.out_stride = stride_of(out);
  params.outputs = cols_of(out);
  params.tokens = rows_of(in);
  params.adds = adds;
  return params;
}

// weights: [panels, panel bytes]
void packed_linear(const py::array& in, const py::array& weights, const py::object& bias, const py::array& out,
                   const std::string& format, bool adds) {
  const cuda::PackedFormat packed = format_named(format);
  if (out.itemsize() == 4) {
    return cuda::packed_linear(linear_params<float, cuda::Bf16>(in, weights, bias, out, adds), packed, nullptr);
  }
  cuda::packed_linear(linear_params<cuda::Bf16, cuda::Bf16>(in, weights, bias, out, adds), packed, nullptr);
}

void float_linear(const py::array& in, const py::array& weights, const py::object& bias, const py::array& out,
                  const std::string& format, bool adds) {
  cuda::float_linear(linear_params<float, float>(in, weights, bias, out, adds), format_named(format), nullptr);
}

void unpack(const py::array& weights, const py::array& out, const std::string& format) {
  cuda::unpack({pointer<unsigned char>(weights), static_cast<std::size_t>(cols_of(weights)),
                matrix_pointer<cuda::Bf16>(out), stride_of(out), rows_of(out), cols_of(out)},
               format_named(format), nullptr);
}

}  // namespace

void bind_linear(py::module_& module) {
  module.def("packed_linear", &packed_linear, py::arg("in_"), py::arg("weights"), py::arg("bias"), py::arg("out"),
             py::arg("format"), py::arg("adds"));
  module.def("unpack", &unpack, py::arg("weights"), py::arg("out"), py::arg("format"));
  module.def("float_linear", &float_linear, py::arg("in_"), py::arg("weights"), py::arg("bias"), py::arg("out"),
             py::arg("format"), py::arg("adds"));
}

}  // namespace llmsrv::emulation
