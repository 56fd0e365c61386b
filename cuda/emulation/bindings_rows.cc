#include "cuda/emulation/cache_arrays.h"
#include "cuda/launch/rows.h"

namespace py = pybind11;

namespace llmsrv::emulation {
namespace {

using cuda::Bf16;

// Calls f with a value of the element type: float for 4-byte elements, Bf16 for 2.
template <typename F>
void with_type_of(const py::array& memory, const F& f) {
  memory.itemsize() == 4 ? f(float{}) : f(Bf16{});
}

// Calls f with values of both element types, of those pairs that have a kernel.
template <typename F>
void with_row_types(const py::array& in, const py::array& out, const F& f) {
  if (in.itemsize() == 4 && out.itemsize() == 2) return f(float{}, Bf16{});
  with_type_of(in, [&]<typename T>(T) { f(T{}, T{}); });
}

void rms_norm(const py::array& in, const py::object& stream, const py::array& weight, const py::array& out, float eps,
              const std::string& use) {
  with_row_types(in, out, [&]<typename T, typename Out>(T, Out) {
    cuda::RmsNormParams<T, Out> params;
    params.in = matrix_pointer<T>(in);
    params.in_stride = stride_of(in);
    params.stream = pointer_or_null<T>(stream);
    params.weight = pointer<float>(weight);
    params.out = matrix_pointer<Out>(out);
    params.out_stride = stride_of(out);
    params.rows = rows_of(in);
    params.cols = cols_of(in);
    params.eps = eps;
    cuda::rms_norm(params,
                   use == "plain"        ? cuda::NormUse::kPlain
                   : use == "add before" ? cuda::NormUse::kAddBefore
                                         : cuda::NormUse::kAddAfter,
                   nullptr);
  });
}

void gated_mul(const py::array& in, const py::array& out, const std::string& gate) {
  with_row_types(in, out, [&]<typename T, typename Out>(T, Out) {
    const cuda::GatedMulParams<T, Out> params{matrix_pointer<T>(in), stride_of(in), matrix_pointer<Out>(out),
                                              stride_of(out),        rows_of(out),  cols_of(out)};
    cuda::gated_mul(params, gate == "silu" ? cuda::Gate::kSilu : cuda::Gate::kGeluTanh, nullptr);
  });
}

void round_rows(const py::array& in, const py::array& out) {
  cuda::round_rows(
      {matrix_pointer<float>(in), stride_of(in), matrix_pointer<Bf16>(out), stride_of(out), rows_of(in), cols_of(in)},
      nullptr);
}

template <typename Out>
void spread_bias(const py::array& bias, const py::array& out, bool adds) {
  cuda::spread_bias<Out>(
      {pointer<float>(bias), matrix_pointer<Out>(out), stride_of(out), rows_of(out), cols_of(out), adds}, nullptr);
}

// table: [panels, panel bytes]
void embed(const py::array& table, const py::array& ids, const py::array& drawn, const py::array& out, float scale,
           const std::string& format) {
  cuda::embed(
      {pointer<unsigned char>(table), static_cast<std::size_t>(cols_of(table)), pointer<std::int32_t>(ids),
       pointer<std::int32_t>(drawn), matrix_pointer<float>(out), stride_of(out), rows_of(out), cols_of(out), scale},
      format_named(format), nullptr);
}

void gather_rows(const py::array& table, const py::array& ids, const py::array& out, float scale) {
  with_type_of(table, [&]<typename T>(T) {
    cuda::gather_rows<T>({matrix_pointer<T>(table), stride_of(table), pointer<std::int32_t>(ids),
                          matrix_pointer<T>(out), stride_of(out), rows_of(out), cols_of(out), scale},
                         nullptr);
  });
}

void rope_store_kv(const py::array& qkv, const py::object& query_norm, const py::object& key_norm, float eps,
                   const py::array& cos, const py::array& sin, const py::array& positions, const py::array& slot_blocks,
                   const py::array& slot_offsets, const py::array& cache, const KvShape& kv_shape, int heads) {
  with_types_of(qkv, cache, [&]<typename T, typename Kv>(T, Kv) {
    cuda::RopeStoreKvParams<T, Kv> params;
    params.qkv = pointer<T>(qkv);
    params.query_norm = pointer_or_null<float>(query_norm);
    params.key_norm = pointer_or_null<float>(key_norm);
    params.eps = eps;
    params.cos = pointer<float>(cos);
    params.sin = pointer<float>(sin);
    params.positions = pointer<std::int32_t>(positions);
    params.slot_blocks = pointer<std::int32_t>(slot_blocks);
    params.slot_offsets = pointer<std::int32_t>(slot_offsets);
    params.cache = kv_layout<Kv>(cache, kv_shape);
    params.rows = rows_of(qkv);
    params.heads = heads;
    cuda::rope_store_kv(params, nullptr);
  });
}

// Layers as addresses of blocks, moves as (from, to).
void move_blocks(const std::vector<py::array>& from, const std::vector<py::array>& to, const py::array& from_blocks,
                 const py::array& to_blocks) {
  std::vector<unsigned char*> sources;
  std::vector<unsigned char*> targets;
  for (const py::array& layer : from) sources.push_back(pointer<unsigned char>(layer));
  for (const py::array& layer : to) targets.push_back(pointer<unsigned char>(layer));
  cuda::move_blocks(
      {in_reach(sources), in_reach(targets), pointer<std::int32_t>(from_blocks), pointer<std::int32_t>(to_blocks),
       static_cast<int>(from.size()), rows_of(from_blocks), static_cast<std::size_t>(from[0].shape(1))},
      nullptr);
}

}  // namespace

void bind_rows(py::module_& module) {
  module.def("rms_norm", &rms_norm, py::arg("in_"), py::arg("stream"), py::arg("weight"), py::arg("out"),
             py::arg("eps"), py::arg("use"));
  module.def("gated_mul", &gated_mul, py::arg("in_"), py::arg("out"), py::arg("gate"));
  module.def("round_rows", &round_rows, py::arg("in_"), py::arg("out"));
  module.def(
      "spread_bias",
      [](const py::array& bias, const py::array& out, bool adds) {
        out.itemsize() == 4 ? spread_bias<float>(bias, out, adds) : spread_bias<Bf16>(bias, out, adds);
      },
      py::arg("bias"), py::arg("out"), py::arg("adds"));
  module.def("embed", &embed, py::arg("table"), py::arg("ids"), py::arg("drawn"), py::arg("out"), py::arg("scale"),
             py::arg("format"));
  module.def("gather_rows", &gather_rows, py::arg("table"), py::arg("ids"), py::arg("out"), py::arg("scale"));
  module.def("rope_store_kv", &rope_store_kv, py::arg("qkv"), py::arg("query_norm"), py::arg("key_norm"),
             py::arg("eps"), py::arg("cos"), py::arg("sin"), py::arg("positions"), py::arg("slot_blocks"),
             py::arg("slot_offsets"), py::arg("cache"), py::arg("kv_shape"), py::arg("heads"));
  module.def("move_blocks", &move_blocks, py::arg("from_"), py::arg("to"), py::arg("from_blocks"),
             py::arg("to_blocks"));
}

}  // namespace llmsrv::emulation
