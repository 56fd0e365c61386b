// The table of the runtime over CUDA's own.
#pragma once

#include "cpp/ops/plugin.h"

namespace llmsrv::cuda {

const device::RuntimeTable& runtime_table();

}  // namespace llmsrv::cuda
