#include <array>

#include "cuda/emulation/bindings.h"
#include "cuda/launch/linear.h"

namespace py = pybind11;

namespace llmsrv::emulation {
namespace {

cuda::PackedFormat format_named(const std::string& name) {
  using F = cuda::PackedFormat;
  constexpr std::array<std::pair<const char*, F>, 9> kNames = {{{"bf16", F::kBf16},
                                                                {"q4_1", F::kU4},
                                                                {"q4_0", F::kU4Zero},
                                                                {"q5_1", F::kU5},
                                                                {"q5_0", F::kU5Zero},
                                                                {"q8_0", F::kS8},
                                                                {"q4_k", F::kU4K},
                                                                {"q5_k", F::kU5K},
                                                                {"q6_k", F::kU6K}}};
  for (const auto& [known, format] : kNames) {
    if (name == known) return format;
  }
  throw std::invalid_argument("no such packed format: " + name);
}

template <typename Out>
void run_linear(const py::array& in, const py::array& weights, const py::object& bias, const py::array& out,
                const std::string& format, bool adds) {
  cuda::PackedLinearParams<Out> params;
  params.in = pointer<cuda::Bf16>(in);
  params.in_stride = params.cols = cols_of(in);
  params.weights = pointer<unsigned char>(weights);
  params.panel_bytes = static_cast<std::size_t>(cols_of(weights));
  params.bias = pointer_or_null<float>(bias);
  params.out = pointer<Out>(out);
  params.out_stride = params.outputs = cols_of(out);
  params.tokens = rows_of(in);
  params.adds = adds;
  cuda::packed_linear(params, format_named(format), nullptr);
}

// weights: [panels, panel bytes]
void packed_linear(const py::array& in, const py::array& weights, const py::object& bias, const py::array& out,
                   const std::string& format, bool adds) {
  if (out.itemsize() == 4) return run_linear<float>(in, weights, bias, out, format, adds);
  run_linear<cuda::Bf16>(in, weights, bias, out, format, adds);
}

}  // namespace

void bind_linear(py::module_& module) {
  module.def("packed_linear", &packed_linear, py::arg("in_"), py::arg("weights"), py::arg("bias"), py::arg("out"),
             py::arg("format"), py::arg("adds"));
}

}  // namespace llmsrv::emulation
