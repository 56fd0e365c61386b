// The decoder alone, without an engine: logits of every position of one sequence, computed in chunks of any size.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "cpp/engine/backends.h"
#include "cpp/model/decoder.h"
#include "cpp/model/rope.h"
#include "python/bindings/testing/testing.h"

namespace py = pybind11;

namespace llmsrv::testing {
namespace {

constexpr int kBlockSize = 16;

// [tokens, vocab]
py::array_t<float> forward_logits(const Weights& weights, const std::vector<TokenId>& tokens, int chunk,
                                  const std::string& kv_cache_dtype, int threads, const std::string& isa) {
  const ModelSpec& spec = weights.spec();
  const int count = static_cast<int>(tokens.size());
  ThreadPool pool(threads);
  const std::unique_ptr<Backend> backend = make_backend(pool, isa);
  const DType dtype = kv_cache_dtype == dtype_name(DType::kF32) ? DType::kF32 : DType::kBf16;
  const int blocks = (count + kBlockSize - 1) / kBlockSize;
  const KvCacheShape shape{spec.num_layers, blocks, kBlockSize, dtype,
                           backend->kv_block_bytes(spec.heads(), kBlockSize, dtype)};
  const KvCache cache(shape, pool);
  Decoder decoder(weights, *backend, cache, {chunk, 1, chunk, count});

  std::vector<BlockId> table(static_cast<std::size_t>(blocks));
  std::iota(table.begin(), table.end(), 0);
  std::reverse(table.begin(), table.end());  // block order must not matter
  py::array_t<float> result({count, spec.vocab_size});
  for (int first = 0; first < count; first += chunk) {
    const int rows = std::min(chunk, count - first);
    StepInputs inputs;
    std::vector<int> all_rows;
    for (int i = 0; i < rows; ++i) {
      const int position = first + i;
      inputs.tokens.push_back(tokens[static_cast<std::size_t>(position)]);
      inputs.positions.push_back(position);
      inputs.slots.push_back({table[static_cast<std::size_t>(position / kBlockSize)], position % kBlockSize});
      all_rows.push_back(i);
    }
    inputs.ranges.push_back({0, rows, first + rows, table.data()});
    decoder.forward(inputs);
    const TensorView logits = decoder.logits(all_rows);
    for (int i = 0; i < rows; ++i) {
      std::memcpy(result.mutable_data(first + i, 0), logits.f32_row(i),
                  static_cast<std::size_t>(spec.vocab_size) * sizeof(float));
    }
  }
  return result;
}

}  // namespace

void register_model(py::module_& module) {
  py::module_::import("llmsrv._core");  // its types are arguments here
  module.def("forward_logits", &forward_logits, py::arg("weights"), py::arg("tokens"), py::kw_only(),
             py::arg("chunk") = 64, py::arg("kv_cache_dtype") = "float32", py::arg("threads") = 1, py::arg("isa") = "");
  module.def("rope_frequencies", &rope_frequencies, py::arg("spec"));
}

}  // namespace llmsrv::testing
