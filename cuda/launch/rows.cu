#include "cuda/launch/rows.h"

#include <type_traits>

#include "cuda/launch/packed_format.h"

namespace llmsrv::cuda {
namespace {

// A row per x, as rows may be many; pieces of a row per y.
template <typename T>
Grid grid_of_chunks(int rows, int cols, int threads) {
  const int pieces = ceil_div(cols, threads * Chunk<T>::kCount);
  return {dim3(static_cast<unsigned>(rows), static_cast<unsigned>(pieces)), dim3(static_cast<unsigned>(threads))};
}

}  // namespace

template <typename T, typename Out>
void rms_norm(const RmsNormParams<T, Out>& params, NormUse use, Stream stream) {
  if (params.rows == 0) return;
  const Grid grid{dim3(static_cast<unsigned>(params.rows)), dim3(kNormThreads)};
  if (use == NormUse::kPlain) return launch(rms_norm_kernel<T, Out, NormUse::kPlain>, grid, stream, params);
  if constexpr (std::is_same_v<T, Out>) {
    if (use == NormUse::kAddBefore) {
      return launch(rms_norm_kernel<T, Out, NormUse::kAddBefore>, grid, stream, params);
    }
    return launch(rms_norm_kernel<T, Out, NormUse::kAddAfter>, grid, stream, params);
  } else {
    throw std::invalid_argument("CUDA rms_norm: what is added to has the type of what is normed");
  }
}

template <typename T, typename Out>
void gated_mul(const GatedMulParams<T, Out>& params, Gate gate, Stream stream) {
  if (params.rows == 0) return;
  const Grid grid = grid_of_chunks<T>(params.rows, params.cols, kGateThreads);
  switch (gate) {
    case Gate::kSilu:
      return launch(gated_mul_kernel<T, Out, Gate::kSilu>, grid, stream, params);
    case Gate::kGeluTanh:
      return launch(gated_mul_kernel<T, Out, Gate::kGeluTanh>, grid, stream, params);
  }
}

void round_rows(const RoundRowsParams& params, Stream stream) {
  if (params.rows == 0) return;
  launch(round_rows_kernel<kRoundThreads>, grid_of_chunks<float>(params.rows, params.cols, kRoundThreads), stream,
         params);
}

template <typename Out>
void spread_bias(const SpreadBiasParams<Out>& params, Stream stream) {
  if (params.rows == 0) return;
  const dim3 blocks(static_cast<unsigned>(params.rows), static_cast<unsigned>(ceil_div(params.cols, kBiasThreads)));
  launch(spread_bias_kernel<Out>, {blocks, dim3(kBiasThreads)}, stream, params);
}

void embed(const EmbedParams& params, PackedFormat format, Stream stream) {
  require_cols("embedding", params.cols, format);
  if (params.tokens == 0) return;
  const Grid grid = grid_of_chunks<float>(params.tokens, params.cols, kEmbedThreads);
  with_format(format, [&](auto constant) { launch(embed_kernel<decltype(constant)::kValue>, grid, stream, params); });
}

template <typename T>
void gather_rows(const GatherRowsParams<T>& params, Stream stream) {
  if (params.rows == 0) return;
  launch(gather_rows_kernel<T>, grid_of_chunks<T>(params.rows, params.cols, kGatherThreads), stream, params);
}

template <typename T, typename Kv>
void rope_store_kv(const RopeStoreKvParams<T, Kv>& params, Stream stream) {
  if (params.rows == 0) return;
  const int heads = params.heads + 2 * params.cache.kv_heads;
  const dim3 blocks(static_cast<unsigned>(params.rows), static_cast<unsigned>(ceil_div(heads, kRopeWarps)));
  launch(rope_store_kv_kernel<T, Kv>, {blocks, dim3(kRopeWarps * kWarpThreads)}, stream, params);
}

void move_blocks(const MoveBlocksParams& params, Stream stream) {
  if (params.moves == 0) return;
  constexpr std::size_t kBytes = static_cast<std::size_t>(kMoveThreads) * 16;
  const auto pieces = static_cast<unsigned>((params.block_bytes + kBytes - 1) / kBytes);
  launch(move_blocks_kernel<kMoveThreads>, {dim3(pieces, static_cast<unsigned>(params.layers)), dim3(kMoveThreads)},
         stream, params);
}

template void rms_norm(const RmsNormParams<float>&, NormUse, Stream);
template void rms_norm(const RmsNormParams<Bf16>&, NormUse, Stream);
template void rms_norm(const RmsNormParams<float, Bf16>&, NormUse, Stream);
template void gated_mul(const GatedMulParams<float>&, Gate, Stream);
template void gated_mul(const GatedMulParams<Bf16>&, Gate, Stream);
template void gated_mul(const GatedMulParams<float, Bf16>&, Gate, Stream);
template void spread_bias(const SpreadBiasParams<float>&, Stream);
template void spread_bias(const SpreadBiasParams<Bf16>&, Stream);
template void gather_rows(const GatherRowsParams<float>&, Stream);
template void gather_rows(const GatherRowsParams<Bf16>&, Stream);
template void rope_store_kv(const RopeStoreKvParams<float, float>&, Stream);
template void rope_store_kv(const RopeStoreKvParams<float, Bf16>&, Stream);
template void rope_store_kv(const RopeStoreKvParams<float, Half>&, Stream);
template void rope_store_kv(const RopeStoreKvParams<float, Fp8>&, Stream);
template void rope_store_kv(const RopeStoreKvParams<float, Int8>&, Stream);
template void rope_store_kv(const RopeStoreKvParams<Bf16, Bf16>&, Stream);
template void rope_store_kv(const RopeStoreKvParams<Bf16, Fp8>&, Stream);
template void rope_store_kv(const RopeStoreKvParams<Bf16, Int8>&, Stream);
template void rope_store_kv(const RopeStoreKvParams<Half, Half>&, Stream);
template void rope_store_kv(const RopeStoreKvParams<Half, Fp8>&, Stream);

}  // namespace llmsrv::cuda
