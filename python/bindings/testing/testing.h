// The testing module: one register function per folder of the core. Not shipped.
#pragma once

#include <pybind11/pybind11.h>

namespace llmsrv::testing {

void register_team(pybind11::module_& module);           // shares that a team works off together
void register_quant(pybind11::module_& module);          // source formats, PackedMatrix
void register_ops(pybind11::module_& module);            // CpuBackend, KvCache
void register_sched(pybind11::module_& module);          // BlockPool, PrefixIndex, a policy of the caller's own
void register_scheduler_sim(pybind11::module_& module);  // the scheduler under a fake model
void register_sample(pybind11::module_& module);         // Sampler
void register_model(pybind11::module_& module);          // Decoder, CacheMemory
void register_engine(pybind11::module_& module);         // engines that fail or wait on command, StepCost
void register_device(pybind11::module_& module);         // the search for a CUDA plug-in
void register_cuda(pybind11::module_& module);           // the CUDA backend over the table of an emulated device
void register_bench(pybind11::module_& module);          // what the machine can do at most, and timed operations

// Allocations in this module since it was loaded.
long allocation_count();

}  // namespace llmsrv::testing
