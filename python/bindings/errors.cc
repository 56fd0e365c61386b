// The one place where core errors become Python exceptions. std::invalid_argument becomes ValueError by pybind11
// itself.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <vector>

#include "python/bindings/bindings.h"

namespace py = pybind11;

namespace llmsrv::bindings {
namespace {

constexpr StatusCode kCodes[] = {
    StatusCode::kOk,          StatusCode::kCancelled,         StatusCode::kInvalidArgument,
    StatusCode::kNotFound,    StatusCode::kDeadlineExceeded,  StatusCode::kAlreadyExists,
    StatusCode::kInternal,    StatusCode::kResourceExhausted, StatusCode::kFailedPrecondition,
    StatusCode::kUnavailable, StatusCode::kUnimplemented,
};

// The class lives as long as the interpreter.
py::handle& status_error_class() {
  static py::handle handle;
  return handle;
}

}  // namespace

py::object make_status_error(const Status& status) {
  py::object error = status_error_class()(status.message());
  py::list violations;
  for (const Violation& violation : status.violations()) {
    violations.append(py::make_tuple(violation.field, violation.description));
  }
  error.attr("code") = static_cast<int>(status.code());
  error.attr("message") = status.message();
  error.attr("violations") = violations;
  error.attr("metadata") = status.metadata();
  return error;
}

DType parse_dtype(const std::string& name, const std::string& field) {
  if (const std::optional<DType> dtype = dtype_named(name)) return *dtype;
  throw std::invalid_argument(field + " must be \"bfloat16\", \"float32\" or \"int8\", is \"" + name + "\"");
}

PreemptionMode parse_preemption_mode(const std::string& name) {
  if (name == "auto") return PreemptionMode::kAuto;
  if (name == "swap") return PreemptionMode::kSwap;
  if (name == "recompute") return PreemptionMode::kRecompute;
  throw std::invalid_argument("preemption_mode must be \"auto\", \"swap\" or \"recompute\", is \"" + name + "\"");
}

SchedulingPolicy parse_scheduling_policy(const std::string& name) {
  if (name == "fcfs") return SchedulingPolicy::kFcfs;
  if (name == "priority") return SchedulingPolicy::kPriority;
  if (name == "fair") return SchedulingPolicy::kFair;
  throw std::invalid_argument("scheduling_policy must be \"fcfs\", \"priority\" or \"fair\", is \"" + name + "\"");
}

void register_errors(py::module_& module) {
  status_error_class() = py::exception<StatusException>(module, "StatusError", PyExc_RuntimeError).release();
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const StatusException& error) {
      PyErr_SetObject(status_error_class().ptr(), make_status_error(error.status()).ptr());
    }
  });
  module.def("status_codes", [] {
    py::dict codes;
    for (const StatusCode code : kCodes) codes[status_code_name(code)] = static_cast<int>(code);
    return codes;
  });
}

}  // namespace llmsrv::bindings
