// What no kernel takes, told at the start and all at once: a launch would refuse it only in the first step.
#pragma once

#include <string>
#include <vector>

#include "cpp/ops/backend.h"
#include "cpp/ops/launches.h"

namespace llmsrv {

// Phrases as Backend::lacks() gives them. `inner`: the type of activations within a layer.
std::vector<std::string> lacking_kernels(const KernelNeeds& needs, DType inner, const device::LaunchTable& launches);

}  // namespace llmsrv
