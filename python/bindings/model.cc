#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <span>
#include <stdexcept>
#include <system_error>

#include "cpp/base/mapped_file.h"
#include "cpp/model/packed_file.h"
#include "cpp/model/spec.h"
#include "cpp/model/weights.h"
#include "python/bindings/bindings.h"

namespace py = pybind11;

namespace llmsrv::bindings {
namespace {

RopeScaling make_rope_scaling(const std::string& kind, double factor, double low_freq_factor, double high_freq_factor,
                              int original_max_position) {
  RopeScaling scaling{RopeScalingKind::kLinear, factor, low_freq_factor, high_freq_factor, original_max_position};
  if (kind == "llama3") {
    scaling.kind = RopeScalingKind::kLlama3;
  } else if (kind != "linear") {
    throw std::invalid_argument("rope scaling kind must be \"linear\" or \"llama3\", is \"" + kind + "\"");
  }
  return scaling;
}

const char* gate_name(GateKind gate) { return gate == GateKind::kSilu ? "silu" : "gelu_tanh"; }

GateKind parse_gate(const std::string& name) {
  if (name == "silu") return GateKind::kSilu;
  if (name == "gelu_tanh") return GateKind::kGeluTanh;
  throw std::invalid_argument("gate must be \"silu\" or \"gelu_tanh\", is \"" + name + "\"");
}

ModelSpec make_spec(int vocab_size, int hidden_size, int intermediate_size, int num_layers, int num_heads,
                    int num_kv_heads, int head_dim, int max_position, double rms_norm_eps, double rope_theta,
                    std::optional<RopeScaling> rope_scaling, bool qkv_bias, bool tied_embeddings,
                    std::optional<int> sliding_window, const std::vector<bool>& windowed_layers,
                    std::optional<double> window_rope_theta, std::optional<double> attention_scale,
                    double embedding_scale, const std::string& gate, bool head_norms, bool post_norms) {
  ModelSpec spec{
      .vocab_size = vocab_size,
      .hidden_size = hidden_size,
      .intermediate_size = intermediate_size,
      .num_layers = num_layers,
      .num_heads = num_heads,
      .num_kv_heads = num_kv_heads,
      .head_dim = head_dim,
      .max_position = max_position,
      .rms_norm_eps = rms_norm_eps,
      .rope_theta = rope_theta,
      .rope_scaling = rope_scaling,
      .qkv_bias = qkv_bias,
      .tied_embeddings = tied_embeddings,
      .sliding_window = sliding_window,
      .windowed_layers = windowed_layers,
      .window_rope_theta = window_rope_theta,
      .attention_scale = attention_scale,
      .embedding_scale = embedding_scale,
      .gate = parse_gate(gate),
      .head_norms = head_norms,
      .post_norms = post_norms,
  };
  check_spec(spec);
  return spec;
}

SourceFormat parse_source_format(const std::string& name, const std::string& weight) {
  const std::optional<SourceFormat> format = source_format_from_name(name);
  if (!format) throw std::invalid_argument("weight '" + weight + "': unknown format '" + name + "'");
  return *format;
}

WeightsDtype parse_weights_dtype(const std::string& name) {
  if (const std::optional<WeightsDtype> dtype = weights_dtype_named(name)) return *dtype;
  throw std::invalid_argument(
      "dtype of weights must be auto, bfloat16, float32, int8 or int4 (or for example int4-g64), is '" + name + "'");
}

void set_weight(Weights& weights, const std::string& name, const std::string& source_format,
                const std::vector<int>& shape, const py::buffer& data) {
  const SourceFormat format = parse_source_format(source_format, name);
  const py::buffer_info info = data.request();
  if (PyBuffer_IsContiguous(info.view(), 'C') == 0) {
    throw std::invalid_argument("weight '" + name + "': is not one C-contiguous piece of memory");
  }
  const auto bytes = static_cast<std::size_t>(info.size) * static_cast<std::size_t>(info.itemsize);
  const std::span<const std::byte> span(static_cast<const std::byte*>(info.ptr), bytes);
  const py::gil_scoped_release release;
  weights.set(name, format, shape, span);
}

[[noreturn]] void raise_os_error(const std::system_error& error) {
  errno = error.code().value();
  PyErr_SetFromErrno(PyExc_OSError);
  throw py::error_already_set();
}

std::shared_ptr<MappedFile> map_file(const std::string& path) {
  try {
    return std::make_shared<MappedFile>(path);
  } catch (const std::system_error& error) {
    raise_os_error(error);
  }
}

void populate(const MappedFile& file, std::size_t offset, std::size_t bytes) {
  if (offset > file.bytes().size() || bytes > file.bytes().size() - offset) {
    throw std::invalid_argument("the range is not in the file");
  }
  try {
    const py::gil_scoped_release release;
    file.populate(offset, bytes);
  } catch (const std::system_error& error) {
    raise_os_error(error);
  }
}

void require_all_set(const Weights& weights) {
  if (!weights.missing().empty()) throw std::invalid_argument("not all weights are set");
}

void register_packed_file(py::class_<Weights, std::shared_ptr<Weights>>& weights) {
  weights.def("packed_text", &packed_file_text, py::arg("key"))
      .def(
          "write_packed",
          [](Weights& self, const std::string& key, int file_number) {
            require_all_set(self);
            const py::gil_scoped_release release;
            return write_packed_file(self, key, file_number);
          },
          py::arg("key"), py::arg("file_number"))
      .def(
          "map_packed",
          [](Weights& self, const std::string& key, const std::shared_ptr<MappedFile>& file) {
            return map_packed_file(self, key, file);
          },
          py::arg("key"), py::arg("file").none(false));
}

void register_spec(py::module_& module) {
  py::class_<RopeScaling>(module, "RopeScaling")
      .def(py::init(&make_rope_scaling), py::kw_only(), py::arg("kind"), py::arg("factor"),
           py::arg("low_freq_factor") = 1.0, py::arg("high_freq_factor") = 4.0, py::arg("original_max_position") = 8192)
      .def_property_readonly(
          "kind",
          [](const RopeScaling& scaling) { return scaling.kind == RopeScalingKind::kLinear ? "linear" : "llama3"; })
      .def_readonly("factor", &RopeScaling::factor)
      .def_readonly("low_freq_factor", &RopeScaling::low_freq_factor)
      .def_readonly("high_freq_factor", &RopeScaling::high_freq_factor)
      .def_readonly("original_max_position", &RopeScaling::original_max_position);

  py::class_<ModelSpec>(module, "ModelSpec")
      .def(py::init(&make_spec), py::kw_only(), py::arg("vocab_size"), py::arg("hidden_size"),
           py::arg("intermediate_size"), py::arg("num_layers"), py::arg("num_heads"), py::arg("num_kv_heads"),
           py::arg("head_dim"), py::arg("max_position"), py::arg("rms_norm_eps"), py::arg("rope_theta"),
           py::arg("rope_scaling") = std::nullopt, py::arg("qkv_bias") = false, py::arg("tied_embeddings") = false,
           py::arg("sliding_window") = std::nullopt, py::arg("windowed_layers") = std::vector<bool>(),
           py::arg("window_rope_theta") = std::nullopt, py::arg("attention_scale") = std::nullopt,
           py::arg("embedding_scale") = 1.0, py::arg("gate") = "silu", py::arg("head_norms") = false,
           py::arg("post_norms") = false)
      .def_readonly("vocab_size", &ModelSpec::vocab_size)
      .def_readonly("hidden_size", &ModelSpec::hidden_size)
      .def_readonly("intermediate_size", &ModelSpec::intermediate_size)
      .def_readonly("num_layers", &ModelSpec::num_layers)
      .def_readonly("num_heads", &ModelSpec::num_heads)
      .def_readonly("num_kv_heads", &ModelSpec::num_kv_heads)
      .def_readonly("head_dim", &ModelSpec::head_dim)
      .def_readonly("max_position", &ModelSpec::max_position)
      .def_readonly("rms_norm_eps", &ModelSpec::rms_norm_eps)
      .def_readonly("rope_theta", &ModelSpec::rope_theta)
      .def_readonly("rope_scaling", &ModelSpec::rope_scaling)
      .def_readonly("qkv_bias", &ModelSpec::qkv_bias)
      .def_readonly("tied_embeddings", &ModelSpec::tied_embeddings)
      .def_readonly("sliding_window", &ModelSpec::sliding_window)
      .def_readonly("windowed_layers", &ModelSpec::windowed_layers)
      .def_readonly("window_rope_theta", &ModelSpec::window_rope_theta)
      .def_readonly("attention_scale", &ModelSpec::attention_scale)
      .def_readonly("embedding_scale", &ModelSpec::embedding_scale)
      .def_property_readonly("gate", [](const ModelSpec& spec) { return gate_name(spec.gate); })
      .def_readonly("head_norms", &ModelSpec::head_norms)
      .def_readonly("post_norms", &ModelSpec::post_norms);

  module.def("expected_weights", [](const ModelSpec& spec) {
    py::dict weights;
    for (const WeightInfo& info : expected_weights(spec)) weights[py::str(info.name)] = py::tuple(py::cast(info.shape));
    return weights;
  });
}

}  // namespace

WeightFormats weight_formats(const ModelSpec& spec, const SourceNames& sources, const std::string& dtype) {
  std::map<std::string, SourceFormat> formats;
  for (const auto& [weight, source] : sources) formats[weight] = parse_source_format(source, weight);
  return choose_weight_formats(spec, formats, parse_weights_dtype(dtype));
}

SourceNames format_names(const WeightFormats& formats) {
  SourceNames names;
  for (const auto& [weight, format] : formats) names[weight] = weight_format_name(format);
  return names;
}

void register_model(py::module_& module) {
  register_spec(module);

  py::class_<MappedFile, std::shared_ptr<MappedFile>>(module, "MappedFile")
      .def(py::init(&map_file), py::arg("path"))
      .def_property_readonly("nbytes", [](const MappedFile& file) { return file.bytes().size(); })
      .def("populate", &populate, py::arg("offset"), py::arg("nbytes"));

  py::class_<Weights, std::shared_ptr<Weights>> weights(module, "Weights");
  weights
      .def(py::init([](const ModelSpec& spec, const std::string& dtype, int threads, const SourceNames& sources) {
             return std::make_shared<Weights>(spec, weight_formats(spec, sources, dtype), threads);
           }),
           py::arg("spec"), py::kw_only(), py::arg("dtype"), py::arg("threads"), py::arg("sources") = SourceNames())
      .def("set", &set_weight, py::arg("name"), py::arg("source_format"), py::arg("shape"), py::arg("data"))
      .def("missing", &Weights::missing)
      .def_property_readonly("bytes", &Weights::bytes)
      .def_property_readonly("spec", &Weights::spec)
      .def_property_readonly("formats", [](const Weights& weights) { return format_names(weights.formats()); });
  register_packed_file(weights);
}

}  // namespace llmsrv::bindings
