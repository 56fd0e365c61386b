#include <pybind11/pybind11.h>

#include "python/bindings/bindings.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The compiled core of llmsrv.";
  llmsrv::bindings::register_errors(module);
  llmsrv::bindings::register_model(module);
  llmsrv::bindings::register_config(module);
  llmsrv::bindings::register_request(module);
  llmsrv::bindings::register_output(module);
  llmsrv::bindings::register_sched(module);
  llmsrv::bindings::register_engine_stats(module);
  llmsrv::bindings::register_engine(module);
}
