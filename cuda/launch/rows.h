// Launches of the kernels that work row by row. Each returns at once; errors of the launch throw. No rows: no launch.
#pragma once

#include "cuda/kernels/gated_mul.cuh"
#include "cuda/kernels/gather_rows.cuh"
#include "cuda/kernels/move_blocks.cuh"
#include "cuda/kernels/rms_norm.cuh"
#include "cuda/kernels/rope_store_kv.cuh"

namespace llmsrv::cuda {

template <typename T>
void rms_norm(const RmsNormParams<T>& params, NormUse use, Stream stream);

template <typename T>
void gated_mul(const GatedMulParams<T>& params, Gate gate, Stream stream);

template <typename T>
void gather_rows(const GatherRowsParams<T>& params, Stream stream);

template <typename T, typename Kv>
void rope_store_kv(const RopeStoreKvParams<T, Kv>& params, Stream stream);

void move_blocks(const MoveBlocksParams& params, Stream stream);

}  // namespace llmsrv::cuda
