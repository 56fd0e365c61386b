#include "cuda/launch/rows.h"

namespace llmsrv::cuda {
namespace {

// A row per x, as rows may be many; pieces of a row per y.
template <typename T>
Grid grid_of_chunks(int rows, int cols, int threads) {
  const int pieces = ceil_div(cols, threads * Chunk<T>::kCount);
  return {dim3(static_cast<unsigned>(rows), static_cast<unsigned>(pieces)), dim3(static_cast<unsigned>(threads))};
}

}  // namespace

template <typename T>
void rms_norm(const RmsNormParams<T>& params, NormUse use, Stream stream) {
  if (params.rows == 0) return;
  const Grid grid{dim3(static_cast<unsigned>(params.rows)), dim3(kNormThreads)};
  switch (use) {
    case NormUse::kPlain:
      return launch(rms_norm_kernel<T, NormUse::kPlain>, grid, stream, params);
    case NormUse::kAddBefore:
      return launch(rms_norm_kernel<T, NormUse::kAddBefore>, grid, stream, params);
    case NormUse::kAddAfter:
      return launch(rms_norm_kernel<T, NormUse::kAddAfter>, grid, stream, params);
  }
}

template <typename T>
void gated_mul(const GatedMulParams<T>& params, Gate gate, Stream stream) {
  if (params.rows == 0) return;
  const Grid grid = grid_of_chunks<T>(params.rows, params.cols, kGateThreads);
  switch (gate) {
    case Gate::kSilu:
      return launch(gated_mul_kernel<T, Gate::kSilu>, grid, stream, params);
    case Gate::kGeluTanh:
      return launch(gated_mul_kernel<T, Gate::kGeluTanh>, grid, stream, params);
  }
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
template void gated_mul(const GatedMulParams<float>&, Gate, Stream);
template void gated_mul(const GatedMulParams<Bf16>&, Gate, Stream);
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
