#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "cpp/base/processors.h"
#include "cpp/engine/backends.h"
#include "cpp/engine/config.h"
#include "cpp/engine/cuda_plugin.h"
#include "cpp/engine/memory_plan.h"
#include "python/bindings/bindings.h"

namespace py = pybind11;

namespace llmsrv::bindings {
namespace {

template <typename T>
using Choices = std::array<std::pair<const char*, T>, 3>;

constexpr Choices<PreemptionMode> kPreemptionModes{
    {{"auto", PreemptionMode::kAuto}, {"swap", PreemptionMode::kSwap}, {"recompute", PreemptionMode::kRecompute}}};
constexpr Choices<SchedulingPolicy> kSchedulingPolicies{
    {{"fcfs", SchedulingPolicy::kFcfs}, {"priority", SchedulingPolicy::kPriority}, {"fair", SchedulingPolicy::kFair}}};

// Throws std::invalid_argument that names the field and its choices.
template <typename T>
T parse_choice(const Choices<T>& choices, const std::string& name, const std::string& field) {
  for (const auto& [known, value] : choices) {
    if (name == known) return value;
  }
  throw std::invalid_argument(field + ": must be " + choices[0].first + ", " + choices[1].first + " or " +
                              choices[2].first + ", not '" + name + "'");
}

template <typename T>
const char* choice_name(const Choices<T>& choices, T value) {
  return std::ranges::find(choices, value, &Choices<T>::value_type::second)->first;
}

EngineConfig make_config(int max_model_len, int block_size, int max_num_seqs, int max_num_batched_tokens,
                         std::size_t kv_cache_memory, const std::string& kv_cache_dtype, std::size_t swap_space,
                         const std::string& preemption_mode, const std::string& scheduling_policy,
                         std::map<std::string, double> tenant_weights, std::optional<double> idle_timeout,
                         std::optional<std::string> trace_steps, int max_queued_requests,
                         std::int64_t max_queued_tokens, int max_logprobs, int max_choices, bool prefix_cache,
                         int prefix_hash_bits, bool deterministic, std::vector<TokenId> eos_token_ids) {
  EngineConfig config;
  config.max_model_len = max_model_len;
  config.block_size = block_size;
  config.max_num_seqs = max_num_seqs;
  config.max_num_batched_tokens = max_num_batched_tokens;
  config.kv_cache_memory = kv_cache_memory;
  config.kv_cache_dtype = parse_dtype(kv_cache_dtype, "kv_cache_dtype");
  config.swap_space = swap_space;
  config.preemption_mode = parse_choice(kPreemptionModes, preemption_mode, "preemption_mode");
  config.scheduling_policy = parse_choice(kSchedulingPolicies, scheduling_policy, "scheduling_policy");
  config.tenant_weights = std::move(tenant_weights);
  config.idle_timeout = idle_timeout;
  config.trace_steps = std::move(trace_steps);
  config.max_queued_requests = max_queued_requests;
  config.max_queued_tokens = max_queued_tokens;
  config.max_logprobs = max_logprobs;
  config.max_choices = max_choices;
  config.prefix_cache = prefix_cache;
  config.prefix_hash_bits = prefix_hash_bits;
  config.deterministic = deterministic;
  config.eos_token_ids = std::move(eos_token_ids);
  return config;
}

MemoryPlan make_plan(const ModelSpec& spec, const std::string& weights_dtype, const EngineConfig& config, int threads,
                     const SourceNames& sources, const std::string& device) {
  check_config(config, spec);
  ThreadPool pool(threads);
  const WeightFormats formats = weight_formats(spec, sources, weights_dtype);
  const std::unique_ptr<Backend> backend =
      make_backend(pool, {.kind = device_kind(device), .isa = "", .deterministic = config.deterministic}, formats);
  return plan_memory(spec, formats, config, *backend);
}

void register_engine_config(py::module_& module) {
  const EngineConfig defaults;
  py::class_<EngineConfig>(module, "EngineConfig")
      .def(py::init(&make_config), py::kw_only(), py::arg("max_model_len"), py::arg("block_size") = defaults.block_size,
           py::arg("max_num_seqs") = defaults.max_num_seqs,
           py::arg("max_num_batched_tokens") = defaults.max_num_batched_tokens,
           py::arg("kv_cache_memory") = defaults.kv_cache_memory,
           py::arg("kv_cache_dtype") = dtype_name(defaults.kv_cache_dtype), py::arg("swap_space") = defaults.swap_space,
           py::arg("preemption_mode") = choice_name(kPreemptionModes, defaults.preemption_mode),
           py::arg("scheduling_policy") = choice_name(kSchedulingPolicies, defaults.scheduling_policy),
           py::arg("tenant_weights") = defaults.tenant_weights, py::arg("idle_timeout") = defaults.idle_timeout,
           py::arg("trace_steps") = defaults.trace_steps, py::arg("max_queued_requests") = defaults.max_queued_requests,
           py::arg("max_queued_tokens") = defaults.max_queued_tokens, py::arg("max_logprobs") = defaults.max_logprobs,
           py::arg("max_choices") = defaults.max_choices, py::arg("prefix_cache") = defaults.prefix_cache,
           py::arg("prefix_hash_bits") = defaults.prefix_hash_bits, py::arg("deterministic") = defaults.deterministic,
           py::arg("eos_token_ids") = defaults.eos_token_ids)
      .def_readonly("max_model_len", &EngineConfig::max_model_len)
      .def_readonly("block_size", &EngineConfig::block_size)
      .def_readonly("max_num_seqs", &EngineConfig::max_num_seqs)
      .def_readonly("max_num_batched_tokens", &EngineConfig::max_num_batched_tokens)
      .def_readonly("kv_cache_memory", &EngineConfig::kv_cache_memory)
      .def_property_readonly("kv_cache_dtype",
                             [](const EngineConfig& config) { return dtype_name(config.kv_cache_dtype); })
      .def_readonly("swap_space", &EngineConfig::swap_space)
      .def_property_readonly(
          "preemption_mode",
          [](const EngineConfig& config) { return choice_name(kPreemptionModes, config.preemption_mode); })
      .def_property_readonly(
          "scheduling_policy",
          [](const EngineConfig& config) { return choice_name(kSchedulingPolicies, config.scheduling_policy); })
      .def_readonly("tenant_weights", &EngineConfig::tenant_weights)
      .def_readonly("idle_timeout", &EngineConfig::idle_timeout)
      .def_readonly("trace_steps", &EngineConfig::trace_steps)
      .def_readonly("max_queued_requests", &EngineConfig::max_queued_requests)
      .def_readonly("max_queued_tokens", &EngineConfig::max_queued_tokens)
      .def_readonly("max_logprobs", &EngineConfig::max_logprobs)
      .def_readonly("max_choices", &EngineConfig::max_choices)
      .def_readonly("prefix_cache", &EngineConfig::prefix_cache)
      .def_readonly("prefix_hash_bits", &EngineConfig::prefix_hash_bits)
      .def_readonly("deterministic", &EngineConfig::deterministic)
      .def_readonly("eos_token_ids", &EngineConfig::eos_token_ids);
}

}  // namespace

DeviceKind device_kind(const std::string& name) {
  if (name == "cpu") return DeviceKind::kCpu;
  if (name == "cuda") return DeviceKind::kCuda;
  throw std::invalid_argument("device must be \"cpu\" or \"cuda\", is \"" + name + "\"");
}

void register_config(py::module_& module) {
  register_engine_config(module);

  py::class_<MemoryPlan>(module, "MemoryPlan")
      .def_property_readonly("weight_formats", [](const MemoryPlan& plan) { return format_names(plan.weight_formats); })
      .def_readonly("weights_bytes", &MemoryPlan::weights_bytes)
      .def_readonly("workspace_bytes", &MemoryPlan::workspace_bytes)
      .def_property_readonly("kv_cache_bytes", [](const MemoryPlan& plan) { return plan.kv_cache.bytes(); })
      .def_property_readonly("kv_block_bytes", [](const MemoryPlan& plan) { return plan.kv_cache.block_bytes(); })
      .def_property_readonly("kv_blocks", [](const MemoryPlan& plan) { return plan.kv_cache.blocks; })
      .def_property_readonly("swap_bytes", [](const MemoryPlan& plan) { return plan.swap.bytes(); })
      .def_property_readonly("swap_blocks", [](const MemoryPlan& plan) { return plan.swap.blocks; })
      .def_property_readonly("total_bytes", &MemoryPlan::total_bytes);

  module.def("plan_memory", &make_plan, py::arg("spec"), py::kw_only(), py::arg("weights_dtype"), py::arg("config"),
             py::arg("threads"), py::arg("sources") = SourceNames(), py::arg("device") = "cpu");
  module.def("cpu_isas", &available_isas);
  module.def("cuda_unavailable", [] { return cuda_unavailable(installed_cuda_plugin()); });
  module.def("cuda_memory", &cuda_memory_bytes);
  module.def("core_processors", &core_processors);
  module.def("physical_cores", [] { return static_cast<int>(core_processors().size()); });
}

}  // namespace llmsrv::bindings
