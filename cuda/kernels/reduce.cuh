// Reductions whose order depends on the number of threads alone, so that a row gives the same bits in any batch.
#pragma once

#include "cuda/kernels/device.cuh"

namespace llmsrv::cuda {

// The sum of a warp's values, in every lane.
__device__ inline float warp_sum(float value) {
  LLMSRV_UNROLL
  for (int step = kWarpThreads / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

// The largest of a warp's values, in every lane.
__device__ inline float warp_max(float value) {
  LLMSRV_UNROLL
  for (int step = kWarpThreads / 2; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

__device__ inline std::uint32_t warp_max(std::uint32_t value) {
  LLMSRV_UNROLL
  for (int step = kWarpThreads / 2; step > 0; step /= 2) value = max(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

// The sum of a block's values, in every thread. `partial`: shared memory, one float per warp, used by nothing else.
// REQUIRES: all threads of a block of whole warps call it, once per kernel
__device__ inline float block_sum(float value, float* partial) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int warps = static_cast<int>(blockDim.x) / kWarpThreads;
  value = warp_sum(value);
  if (lane == 0) partial[warp] = value;
  __syncthreads();  // every warp's part is there
  return warp_sum(lane < warps ? partial[lane] : 0.0f);
}

// The largest of a block's values, in every thread; else as block_sum().
__device__ inline std::uint32_t block_max(std::uint32_t value, std::uint32_t* partial) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int warps = static_cast<int>(blockDim.x) / kWarpThreads;
  value = warp_max(value);
  if (lane == 0) partial[warp] = value;
  __syncthreads();  // every warp's part is there
  return warp_max(lane < warps ? partial[lane] : 0u);
}

}  // namespace llmsrv::cuda
