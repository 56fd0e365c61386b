#include "cuda/launch/attention_hopper.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "cuda/kernels/attention_prefill_hopper.cuh"
#include "cuda/kernels/compare_products.cuh"

namespace llmsrv::cuda {
namespace {

// Maps that were made, of the caches of this thread's layers. A map follows from its key alone, so none goes stale.
const TileMap& kept_map(const TileOfMatrix& matrix) {
  constexpr std::size_t kMost = 1024;  // by then most belong to caches that are gone
  thread_local std::map<std::tuple<const Bf16*, std::uint64_t, std::uint64_t, std::uint32_t>, TileMap> maps;
  const auto key = std::tuple(matrix.data, matrix.rows, matrix.cols, matrix.box_rows);
  const auto found = maps.find(key);
  if (found != maps.end()) return found->second;
  if (maps.size() == kMost) maps.clear();
  return maps.emplace(key, make_tile_map(matrix)).first->second;
}

// The cache as rows of one token and head each: [blocks][keys, values][kv_heads][block_size] rows of head_dim.
const TileMap& map_of(const KvLayout<Bf16>& cache, int blocks) {
  const auto head_dim = static_cast<std::uint64_t>(cache.head_dim);
  return kept_map({cache.data, static_cast<std::uint64_t>(blocks) * 2 * cache.half_block() / head_dim, head_dim,
                   static_cast<std::uint32_t>(std::min(cache.block_size, kTileKeys))});
}

template <int kDim>
void launch_prefill(const AttentionParams<Bf16, Bf16>& params, int cache_blocks, const AttentionGrid& grid,
                    Stream stream) {
  const int group = params.heads / params.cache.kv_heads;
  const dim3 blocks(static_cast<unsigned>(ceil_div(grid.rows_max * group, kHopperRows)),
                    static_cast<unsigned>(params.cache.kv_heads), static_cast<unsigned>(grid.ranges));
  launch(attend_prefill_hopper_kernel<kDim>, {blocks, dim3(kHopperThreads), kHopperSharedBytes<kDim>}, stream, params,
         map_of(params.cache, cache_blocks));
}

}  // namespace

void compare_products(int blocks, int* unequal, Stream stream) {
  launch(compare_products_kernel, {dim3(static_cast<unsigned>(blocks)), dim3(kWarpGroupThreads), kComparedSharedBytes},
         stream, unequal);
}

bool has_hopper_prefill(int head_dim, int block_size) {
  return (head_dim == 64 || head_dim == 128) && block_size >= kHopperBoxRowsMin;
}

void attend_prefill_hopper(const AttentionParams<Bf16, Bf16>& params, int cache_blocks, const AttentionGrid& grid,
                           Stream stream) {
  if (grid.ranges == 0) return;
  if (!has_hopper_prefill(params.cache.head_dim, params.cache.block_size)) {
    throw std::invalid_argument("CUDA attention for Hopper has no kernel for head size " +
                                std::to_string(params.cache.head_dim) + " and blocks of " +
                                std::to_string(params.cache.block_size));
  }
  params.cache.head_dim == 64 ? launch_prefill<64>(params, cache_blocks, grid, stream)
                              : launch_prefill<128>(params, cache_blocks, grid, stream);
}

}  // namespace llmsrv::cuda
