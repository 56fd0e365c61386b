#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cpp/base/processors.h"
#include "cpp/cpu/isa.h"
#include "cpp/quant/matrix_stack.h"
#include "python/bindings/testing/kernel_digests.h"
#include "python/bindings/testing/test_backend.h"
#include "python/bindings/testing/testing.h"

namespace llmsrv::testing {
namespace {

// Each operation returns how often it allocated.

// `norms`: weights of queries and of keys, and epsilon.
long rope_and_store_kv(TestBackend& test, Floats qkv, const Floats& cos, const Floats& sin, const Ints& positions,
                       const std::vector<std::pair<BlockId, int>>& slots, KvCache& cache,
                       const std::optional<std::tuple<Floats, Floats, float>>& norms) {
  const RopeTable rope{cos.data(), sin.data(), static_cast<int>(cos.shape(0))};
  StepInputs inputs;
  inputs.tokens.resize(slots.size());
  inputs.positions.assign(positions.data(), positions.data() + positions.size());
  for (const auto& [block, offset] : slots) inputs.slots.push_back({block, offset});
  inputs.block_size = cache.layer.block_size;
  const TensorView rows = view(qkv);
  std::optional<HeadNorms> head_norms;
  if (norms) head_norms = HeadNorms{span(std::get<0>(*norms)), span(std::get<1>(*norms)), std::get<2>(*norms)};
  py::gil_scoped_release release;
  return test.in_step(inputs,
                      [&] { test.backend->rope_and_store_kv(rows, cache.shape, head_norms, rope, cache.layer); });
}

// ranges: (first_row, row_count, context_len, block ids). Returns how often operator new was called inside the
// operation.
long paged_attention(TestBackend& test, Floats qkv, KvCache& cache,
                     const std::vector<std::tuple<int, int, int, std::vector<BlockId>>>& ranges, float scale,
                     std::optional<int> window, std::optional<float> soft_cap, Floats out) {
  StepInputs inputs;
  for (const auto& [first_row, row_count, context_len, blocks] : ranges) {
    inputs.ranges.push_back({first_row, row_count, context_len, blocks.data()});
  }
  inputs.block_size = cache.layer.block_size;
  const TensorView in_view = view(qkv);
  inputs.tokens.resize(static_cast<std::size_t>(in_view.rows));
  const TensorView out_view = view(out);
  py::gil_scoped_release release;
  return test.in_step(inputs, [&] {
    test.backend->paged_attention(in_view, cache.shape, cache.layer, {scale, window, soft_cap}, out_view);
  });
}

// One cache per layer on both sides. moves: (from, to).
long move_blocks(TestBackend& test, const std::vector<const KvCache*>& from, const std::vector<const KvCache*>& to,
                 const std::vector<std::pair<BlockId, BlockId>>& moves) {
  const auto layers = [](const std::vector<const KvCache*>& caches) {
    std::vector<KvLayer> result;
    for (const KvCache* cache : caches) result.push_back(cache->layer);
    return result;
  };
  const std::vector<KvLayer> from_layers = layers(from);
  const std::vector<KvLayer> to_layers = layers(to);
  std::vector<BlockMove> block_moves;
  for (const auto& [source, target] : moves) block_moves.push_back({source, target});
  py::gil_scoped_release release;
  const long before = allocation_count();
  test.backend->move_blocks(from_layers, to_layers, block_moves);
  return allocation_count() - before;
}

// `norm`: weights and epsilon of an RMS norm before; `gate`: the input is gates of that kind, and factors.
long linear(TestBackend& test, Floats in, std::span<const PackedMatrix> weights, const std::optional<Floats>& bias,
            bool add, Floats out, const std::optional<std::pair<Floats, float>>& norm,
            const std::optional<std::string>& gate) {
  const TensorView in_view = view(in);
  const TensorView out_view = view(out);
  const std::span<const float> bias_values = bias ? span(*bias) : std::span<const float>();
  const Prologue prologue = norm   ? Prologue(RmsNorm{span(norm->first), norm->second})
                            : gate ? Prologue(GatedMul{*gate == "silu" ? GateKind::kSilu : GateKind::kGeluTanh})
                                   : Prologue();
  py::gil_scoped_release release;
  const long before = allocation_count();
  test.backend->linear(in_view, prologue, weights, bias_values,
                       add ? Backend::Accumulate::kAdd : Backend::Accumulate::kStore, out_view);
  return allocation_count() - before;
}

long linear_of_matrix(TestBackend& test, Floats in, const PackedMatrix& weight, const std::optional<Floats>& bias,
                      bool add, Floats out, const std::optional<std::pair<Floats, float>>& norm,
                      const std::optional<std::string>& gate) {
  return linear(test, in, {&weight, 1}, bias, add, out, norm, gate);
}
long linear_of_stack(TestBackend& test, Floats in, const MatrixStack& weights, const std::optional<Floats>& bias,
                     bool add, Floats out, const std::optional<std::pair<Floats, float>>& norm,
                     const std::optional<std::string>& gate) {
  return linear(test, in, weights.parts(), bias, add, out, norm, gate);
}

void register_backend(py::module_& m) {
  py::class_<TestBackend>(m, "CpuBackend")
      .def(py::init<int, const std::string&>(), py::arg("threads") = 1, py::arg("isa") = "")
      .def_property_readonly("description", [](const TestBackend& test) { return test.backend->description(); })
      .def(
          "reserve",
          [](TestBackend& test, int tokens, int sequences, int context_len, int input_cols, const HeadShape& shape) {
            test.backend->reserve({tokens, sequences, context_len, input_cols, shape, 0, 0});
          },
          py::kw_only(), py::arg("tokens"), py::arg("sequences"), py::arg("context_len"), py::arg("input_cols"),
          py::arg("shape"))
      .def(
          "embed",
          [](TestBackend& test, const Ints& ids, const PackedMatrix& table, Floats out, float scale) {
            StepInputs inputs;
            inputs.tokens.assign(ids.data(), ids.data() + ids.size());
            const TensorView out_view = view(out);
            return test.in_step(inputs, [&] { test.backend->embed(table, scale, out_view); });
          },
          py::arg("ids"), py::arg("table"), py::arg("out").noconvert(), py::arg("scale") = 1.0f)
      .def(
          "add_rms_norm",
          [](TestBackend& test, Floats in, const Floats& weight, float eps, Floats out) {
            const long before = allocation_count();
            test.backend->add_rms_norm(view(in), {span(weight), eps}, view(out));
            return allocation_count() - before;
          },
          py::arg("x").noconvert(), py::arg("weight"), py::arg("eps"), py::arg("out").noconvert())
      .def("linear", &linear_of_matrix, py::arg("x").noconvert(), py::arg("weight"), py::arg("bias"), py::arg("add"),
           py::arg("out").noconvert(), py::kw_only(), py::arg("norm") = std::nullopt, py::arg("gate") = std::nullopt)
      .def("linear", &linear_of_stack, py::arg("x").noconvert(), py::arg("weight"), py::arg("bias"), py::arg("add"),
           py::arg("out").noconvert(), py::kw_only(), py::arg("norm") = std::nullopt, py::arg("gate") = std::nullopt)
      .def("rope_and_store_kv", &rope_and_store_kv, py::arg("qkv").noconvert(), py::arg("cos"), py::arg("sin"),
           py::arg("positions"), py::arg("slots"), py::arg("cache"), py::arg("norms") = std::nullopt)
      .def("paged_attention", &paged_attention, py::arg("qkv").noconvert(), py::arg("cache"), py::arg("ranges"),
           py::arg("scale"), py::arg("window"), py::arg("soft_cap"), py::arg("out").noconvert())
      .def("move_blocks", &move_blocks, py::arg("source"), py::arg("target"), py::arg("moves"));
}

// The layer's memory as an array of bytes: [blocks, bytes of a block]. It is the cache itself, not a copy.
py::array_t<std::uint8_t> blocks_of(const py::object& self) {
  const auto& cache = self.cast<const KvCache&>();
  const std::vector<py::ssize_t> shape{cache.layer.blocks, static_cast<py::ssize_t>(cache.layer.block_bytes)};
  return py::array_t<std::uint8_t>(shape, reinterpret_cast<std::uint8_t*>(cache.layer.data), self);
}

void register_cache(py::module_& m) {
  py::class_<KvCache>(m, "KvCache")
      .def(py::init<const TestBackend&, const HeadShape&, int, const std::string&, int>(), py::arg("backend"),
           py::arg("shape"), py::arg("block_size"), py::arg("dtype"), py::arg("blocks"))
      .def_property_readonly("nbytes", [](const KvCache& cache) { return cache.buffer.size(); })
      .def_property_readonly("blocks", &blocks_of)
      .def(
          "fill",  // every byte of the cache; 0xff makes every element a NaN
          [](KvCache& cache, int byte) { std::memset(cache.buffer.data(), byte, cache.buffer.size()); },
          py::arg("byte"));
}

}  // namespace

void register_ops(py::module_& m) {
  m.def("available_cpu_isas", &available_cpu_isas);
  m.def("cpu_isa_from_environment", &cpu_isa_from_environment);
  m.def("core_processors", &core_processors);
  m.def("kernel_digests", &kernel_digests, py::arg("isa"));
  m.def("allocation_count", &allocation_count);

  py::class_<HeadShape>(m, "HeadShape")
      .def(py::init([](int heads, int kv_heads, int head_dim) { return HeadShape{heads, kv_heads, head_dim}; }),
           py::arg("heads"), py::arg("kv_heads"), py::arg("head_dim"))
      .def_readonly("heads", &HeadShape::heads)
      .def_readonly("kv_heads", &HeadShape::kv_heads)
      .def_readonly("head_dim", &HeadShape::head_dim);

  register_backend(m);

  register_cache(m);
}

}  // namespace llmsrv::testing
