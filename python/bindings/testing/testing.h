// The testing module: one register function per folder of the core. Not shipped.
#pragma once

#include <pybind11/pybind11.h>

namespace llmsrv::testing {

void register_ops(pybind11::module_& module);
void register_quant(pybind11::module_& module);
void register_sched(pybind11::module_& module);
void register_sample(pybind11::module_& module);
void register_model(pybind11::module_& module);

}  // namespace llmsrv::testing
