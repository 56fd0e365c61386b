// Which kernel tables this machine can run, and the choice among them.
#pragma once

#include <string>

#include "cpp/cpu/int8_kernels.h"
#include "cpp/cpu/kernels.h"

namespace llmsrv {

// The tables named `isa`, or the best ones when `isa` is empty, with their name. A choice that is unknown or that this
// machine cannot run throws std::invalid_argument that names it and what is available.
struct CpuIsa {
  std::string name;
  const cpu::KernelTable* kernels;
  const cpu::Int8Table* int8_kernels;
};
CpuIsa choose_cpu_isa(const std::string& isa);

// The value of the environment variable LLMSRV_ISA; empty when it is not set.
std::string cpu_isa_from_environment();

}  // namespace llmsrv
