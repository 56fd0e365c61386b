// What each file of the testing module adds to it.
#pragma once

#include <pybind11/pybind11.h>

namespace llmsrv::testing {

void register_quant(pybind11::module_& m);  // source formats, PackedMatrix
void register_ops(pybind11::module_& m);    // CpuBackend, KvCache
void register_bench(pybind11::module_& m);  // what the machine can do at most, and timed operations

// Times operator new was called in this module since it was loaded.
long allocation_count();

}  // namespace llmsrv::testing
