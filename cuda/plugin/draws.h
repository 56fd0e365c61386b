// The launches of sampling, with the arguments of the plug-in's table. Errors throw.
#pragma once

#include "cpp/ops/launches.h"
#include "cuda/launch/sampling.h"

namespace llmsrv::cuda {

void run(const device::Sample& launch, Stream stream);
void run(const device::Logprobs& launch, Stream stream);

}  // namespace llmsrv::cuda
