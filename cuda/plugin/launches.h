// The table of launches: the plain structs of cpp/ops/launches.h as the kernels' own arguments. The emulated build has
// the same table.
#pragma once

#include "cpp/ops/launches.h"

namespace llmsrv::cuda {

const device::LaunchTable& launch_table();

}  // namespace llmsrv::cuda
