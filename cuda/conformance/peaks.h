// What a device can do at most, as kernels that do only that. Each returns at once; errors of the launch throw.
#pragma once

#include "cuda/kernels/device.cuh"

namespace llmsrv::cuda {

// Copies `chunks` times 16 bytes.
void copy_chunks(const uint4* in, uint4* out, std::size_t chunks, Stream stream);

constexpr int kPeakWarps = 8;      // of a block
constexpr int kPeakProducts = 16;  // of a warp in a round: 16 x 8 x 16 multiply-adds each
// Matrix products of numbers in registers. out: [blocks][kPeakWarps * 32], so that nothing is left out.
void multiply_in_registers(float* out, int blocks, int rounds, Stream stream);

}  // namespace llmsrv::cuda
