// Launches of the kernels that work row by row. Each returns at once; errors of the launch throw. No rows: no launch.
#pragma once

#include "cuda/kernels/embed.cuh"
#include "cuda/kernels/gated_mul.cuh"
#include "cuda/kernels/gather_rows.cuh"
#include "cuda/kernels/move_blocks.cuh"
#include "cuda/kernels/rms_norm.cuh"
#include "cuda/kernels/rope_store_kv.cuh"
#include "cuda/kernels/round_rows.cuh"
#include "cuda/kernels/spread_bias.cuh"

namespace llmsrv::cuda {

// Of float and Bf16 rows; of float rows also into Bf16, which is what packed linear layers take.
template <typename T, typename Out>
void rms_norm(const RmsNormParams<T, Out>& params, NormUse use, Stream stream);
template <typename T, typename Out>
void gated_mul(const GatedMulParams<T, Out>& params, Gate gate, Stream stream);
void round_rows(const RoundRowsParams& params, Stream stream);
// Of float and Bf16 rows.
template <typename Out>
void spread_bias(const SpreadBiasParams<Out>& params, Stream stream);

// Throws std::invalid_argument when the columns do not fit the format.
void embed(const EmbedParams& params, PackedFormat format, Stream stream);

template <typename T>
void gather_rows(const GatherRowsParams<T>& params, Stream stream);

template <typename T, typename Kv>
void rope_store_kv(const RopeStoreKvParams<T, Kv>& params, Stream stream);

void move_blocks(const MoveBlocksParams& params, Stream stream);

}  // namespace llmsrv::cuda
