// The CUDA backend over any plug-in's table: the emulated device's. A table comes as a capsule of another module.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cpp/cuda/cuda_backend.h"
#include "cpp/engine/engine.h"
#include "python/bindings/testing/lone_sequence.h"
#include "python/bindings/testing/test_backend.h"
#include "python/bindings/testing/testing.h"

namespace py = pybind11;

namespace llmsrv::testing {
namespace {

const PluginTable& table_of(const py::capsule& plugin) { return *plugin.get_pointer<const PluginTable>(); }

CudaOptions options_of(const std::string& dtype, bool deterministic, std::optional<int> library_rows) {
  return {.inner_dtype = dtype_named(dtype).value(), .deterministic = deterministic, .library_rows = library_rows};
}

std::unique_ptr<Engine> cuda_engine(std::shared_ptr<Weights> weights, const EngineConfig& config,
                                    const py::capsule& plugin, const std::string& dtype, bool graphs, bool times_steps,
                                    std::optional<int> library_rows) {
  const PluginTable& table = table_of(plugin);
  CudaOptions options = options_of(dtype, config.deterministic, library_rows);
  options.graphs = graphs;
  options.times_steps = times_steps;
  return std::make_unique<Engine>(std::move(weights), config, std::make_shared<Team>(1),
                                  [&](ThreadPool&) { return make_cuda_backend(table, options); });
}

// Logits of the last chunk's tokens. [tokens, vocab]. Nobody waits for the device before that; with `swaps` all blocks
// go to the swap pool and back between chunks.
py::array_t<float> cuda_last_logits(const Weights& weights, const std::vector<TokenId>& tokens,
                                    const py::capsule& plugin, int chunk, const std::string& kv_cache_dtype,
                                    const std::string& dtype, bool swaps, bool times_steps, bool deterministic,
                                    std::optional<int> library_rows) {
  const int count = static_cast<int>(tokens.size());
  const int vocab = weights.spec().vocab_size;
  CudaOptions options = options_of(dtype, deterministic, library_rows);
  options.times_steps = times_steps;
  LoneSequence sequence(weights, count, chunk, dtype_named(kv_cache_dtype).value(),
                        make_cuda_backend(table_of(plugin), options));
  int rows = 0;
  for (int first = 0; first < count; first += rows) {
    rows = std::min(chunk, count - first);
    if (swaps && first > 0) sequence.swap_out_and_in();
    sequence.forward(std::span(tokens).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(rows)));
  }
  const TensorView logits = sequence.logits();
  py::array_t<float> result({rows, vocab});
  for (int row = 0; row < rows; ++row) {
    std::memcpy(result.mutable_data(row, 0), logits.f32_row(row), static_cast<std::size_t>(vocab) * sizeof(float));
  }
  return result;
}

// Rows of the table, one pick after the other; nobody waits before the last one. Results: [rows, cols] each.
std::vector<py::array_t<float>> cuda_gathered_rows(Floats table, const std::vector<std::vector<int>>& picks,
                                                   const py::capsule& plugin) {
  const TensorView on_host = view(table);
  const std::unique_ptr<Backend> backend =
      make_cuda_backend(table_of(plugin), options_of("float32", true, std::nullopt));
  backend->reserve({.tokens = 1,
                    .sequences = 1,
                    .context_len = 1,
                    .input_cols = on_host.cols,
                    .shape = {1, 1, 2},
                    .result_rows = on_host.rows,
                    .result_cols = on_host.cols});
  const std::size_t bytes = static_cast<std::size_t>(on_host.rows) * static_cast<std::size_t>(on_host.cols) * 4;
  const std::unique_ptr<Buffer> pinned = backend->allocate(bytes, MemoryPlace::kHost);  // kernels read it, too
  std::memcpy(pinned->data(), on_host.data, bytes);
  const auto at = [&](const Buffer& buffer, std::size_t rows) {
    return TensorView::f32(reinterpret_cast<float*>(buffer.data()), static_cast<int>(rows), on_host.cols);
  };
  std::vector<std::unique_ptr<Buffer>> outs;
  for (const std::vector<int>& rows : picks) {
    outs.push_back(backend->allocate(bytes, MemoryPlace::kDevice));
    backend->gather_rows(at(*pinned, static_cast<std::size_t>(on_host.rows)), rows, at(*outs.back(), rows.size()));
  }
  std::vector<py::array_t<float>> results;
  for (std::size_t i = 0; i < picks.size(); ++i) {
    const TensorView rows = backend->to_host(at(*outs[i], picks[i].size()));
    results.emplace_back(std::vector<py::ssize_t>{rows.rows, rows.cols}, static_cast<const float*>(rows.data));
  }
  return results;
}

}  // namespace

void register_cuda(py::module_& module) {
  module.def("cuda_engine", &cuda_engine, py::arg("weights"), py::arg("config"), py::arg("plugin"), py::kw_only(),
             py::arg("dtype") = "float32", py::arg("graphs") = true, py::arg("times_steps") = false,
             py::arg("library_rows") = std::nullopt);
  module.def("cuda_last_logits", &cuda_last_logits, py::arg("weights"), py::arg("tokens"), py::arg("plugin"),
             py::kw_only(), py::arg("chunk"), py::arg("kv_cache_dtype") = "float32", py::arg("dtype") = "float32",
             py::arg("swaps") = false, py::arg("times_steps") = false, py::arg("deterministic") = true,
             py::arg("library_rows") = std::nullopt);
  module.def("cuda_gathered_rows", &cuda_gathered_rows, py::arg("table"), py::arg("picks"), py::arg("plugin"));
}

}  // namespace llmsrv::testing
