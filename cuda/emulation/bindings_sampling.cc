#include "cuda/emulation/bindings.h"
#include "cuda/launch/sampling.h"

namespace py = pybind11;

namespace llmsrv::emulation {
namespace {

// rows: (uniform, temperature, top_p, min_p, top_k) each
void sample(const py::array& logits, const std::vector<std::tuple<double, float, float, float, int>>& rows,
            const py::object& allowed, const py::array& weights, const py::array& tokens, const py::array& finite) {
  std::vector<cuda::SampleRowOnDevice> on_device;
  for (const auto& [uniform, temperature, top_p, min_p, top_k] : rows) {
    on_device.push_back({uniform, temperature, top_p, min_p, top_k});
  }
  cuda::SampleParams params;
  params.logits = pointer<float>(logits);
  params.rows = in_reach(on_device);
  params.allowed = pointer_or_null<std::uint32_t>(allowed);
  params.weights = pointer<float>(weights);
  params.tokens = pointer<std::int32_t>(tokens);
  params.finite = pointer<std::int32_t>(finite);
  params.row_count = rows_of(logits);
  params.vocab = cols_of(logits);
  cuda::sample(params, nullptr);
}

}  // namespace

void bind_sampling(py::module_& module) {
  module.def("sample", &sample, py::arg("logits"), py::arg("rows"), py::arg("allowed"), py::arg("weights"),
             py::arg("tokens"), py::arg("finite"));
}

}  // namespace llmsrv::emulation
