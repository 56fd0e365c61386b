// The part of <cuda.h> that the kernels for Hopper use, for host compilers.
#pragma once

#include "cuda/emulation/hopper.h"
