// Launches of linear layers. Each returns at once; errors of the launch throw. No tokens: no launch.
#pragma once

#include "cuda/kernels/float_linear.cuh"
#include "cuda/kernels/packed_gemm.cuh"
#include "cuda/kernels/packed_linear.cuh"
#include "cuda/kernels/unpack.cuh"

namespace llmsrv::cuda {

// By tensor cores. Out is Bf16 or float. The number of tokens chooses the kernel, and no bit of a row. Throws
// std::invalid_argument when cols is no multiple of 32, or for float32 weights.
template <typename Out>
void packed_linear(const PackedLinearParams<Out>& params, PackedFormat format, Stream stream);

// Float by float, in the order that cpp/ops/backend.h defines. Throws std::invalid_argument when the columns do not fit
// the format.
void float_linear(const PackedLinearParams<float, float>& params, PackedFormat format, Stream stream);

// The matrix as bf16 rows. Throws std::invalid_argument when the columns do not fit the format.
void unpack(const UnpackParams& params, PackedFormat format, Stream stream);

}  // namespace llmsrv::cuda
