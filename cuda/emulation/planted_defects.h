// Small kernels, right ones and wrong ones: what the emulator itself is tested with.
#pragma once

#include <string>

namespace llmsrv::cuda {

// Runs the kernel of that name on `memory` of 256 ints. Throws std::invalid_argument for an unknown name.
void run_planted(const std::string& name, int* memory);

}  // namespace llmsrv::cuda
