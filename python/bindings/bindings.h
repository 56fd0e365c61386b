// What the binding files share: one register function per bound concept, and the bridge for refusals.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <map>
#include <string>
#include <utility>

#include "cpp/base/status.h"
#include "cpp/engine/backends.h"
#include "cpp/engine/request.h"
#include "cpp/model/weight_formats.h"
#include "cpp/sched/scheduler.h"
#include "cpp/tensor/dtype.h"

namespace llmsrv::bindings {

void register_errors(pybind11::module_& module);
void register_model(pybind11::module_& module);
void register_config(pybind11::module_& module);
void register_request(pybind11::module_& module);
void register_sched(pybind11::module_& module);
void register_output(pybind11::module_& module);
void register_engine_stats(pybind11::module_& module);
void register_engine(pybind11::module_& module);

// A refused request on its way to Python, where it becomes a StatusError.
class StatusException : public std::exception {
 public:
  explicit StatusException(Status status) : status_(std::move(status)) {}
  const Status& status() const { return status_; }
  const char* what() const noexcept override { return status_.message().c_str(); }

 private:
  Status status_;
};

// A StatusError instance with code, message, violations and metadata.
pybind11::object make_status_error(const Status& status);

// The core's form of Python's Request. REQUIRES: `object` is one
Request to_request(const pybind11::handle& object);

// "bfloat16", "float32" or "int8"; anything else throws std::invalid_argument that names `field`.
DType parse_dtype(const std::string& name, const std::string& field);

// The formats that a model's matrices get. `sources`: weight name -> format of the file; `dtype`: "auto", "bfloat16",
// "float32", "int8" or "int4". Throws std::invalid_argument for unknown names.
using SourceNames = std::map<std::string, std::string>;
WeightFormats weight_formats(const ModelSpec& spec, const SourceNames& sources, const std::string& dtype);
// Weight name -> format name.
SourceNames format_names(const WeightFormats& formats);

// "cpu" or "cuda"; anything else throws std::invalid_argument.
DeviceKind device_kind(const std::string& name);

// "auto", "swap" or "recompute"; "fcfs", "priority" or "fair". Anything else throws std::invalid_argument.
PreemptionMode parse_preemption_mode(const std::string& name);
SchedulingPolicy parse_scheduling_policy(const std::string& name);

}  // namespace llmsrv::bindings
