// Norms each head of the queries and keys if weights are given, rotates it by the row's position, and stores keys and
// values in the cache. Queries are changed in place; keys and values of the input are left as they were.
//   x'[i] = x[i] cos - x[i + d/2] sin;   x'[i + d/2] = x[i + d/2] cos + x[i] sin
//
// Work: one warp per row and head (of queries, keys and values), kRopeWarps to a block; a lane takes the pairs
// (i, i + d/2), i = lane, lane + 32, ...
// Shared memory: none. Bytes moved: a row of qkv in, its queries and its keys and values out; tables come from L2.
// Assumes: head_dim is even and at most 256.
#pragma once

#include "cuda/kernels/kv_layout.cuh"
#include "cuda/kernels/reduce.cuh"

namespace llmsrv::cuda {

template <typename T, typename Kv>
struct RopeStoreKvParams {
  T* qkv = nullptr;                   // [rows, (heads + 2 kv_heads) head_dim]: queries, keys, values
  const float* query_norm = nullptr;  // [head_dim] or none
  const float* key_norm = nullptr;
  float eps = 0.0f;
  const float* cos = nullptr;  // [positions, head_dim / 2]
  const float* sin = nullptr;
  const std::int32_t* positions = nullptr;     // [rows]
  const std::int32_t* slot_blocks = nullptr;   // [rows]
  const std::int32_t* slot_offsets = nullptr;  // [rows]
  KvLayout<Kv> cache;
  int rows = 0;
  int heads = 0;
};

constexpr int kRopeWarps = 4;
constexpr int kHeadDimMax = 256;

template <typename T, typename Kv>
__global__ void __launch_bounds__(kRopeWarps* kWarpThreads) rope_store_kv_kernel(const RopeStoreKvParams<T, Kv> p) {
  constexpr int kPairsMax = kHeadDimMax / 2 / kWarpThreads;
  const int head_dim = p.cache.head_dim;
  const int half = head_dim / 2;
  const int kv_heads = p.cache.kv_heads;
  const int row = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y) * kRopeWarps + static_cast<int>(threadIdx.x) / kWarpThreads;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  if (head >= p.heads + 2 * kv_heads) return;  // whole warps leave
  const bool is_query = head < p.heads;
  const bool is_value = head >= p.heads + kv_heads;
  T* x = p.qkv + static_cast<std::size_t>(row) * static_cast<std::size_t>((p.heads + 2 * kv_heads) * head_dim) +
         static_cast<std::size_t>(head * head_dim);

  float low[kPairsMax] = {};
  float high[kPairsMax] = {};
  LLMSRV_UNROLL
  for (int j = 0; j < kPairsMax; ++j) {
    const int i = lane + j * kWarpThreads;
    if (i >= half) continue;
    low[j] = to_float(x[i]);
    high[j] = to_float(x[i + half]);
  }
  const float* weight = is_query ? p.query_norm : p.key_norm;
  if (!is_value && weight != nullptr) {
    float squares = 0.0f;
    LLMSRV_UNROLL
    for (int j = 0; j < kPairsMax; ++j) squares = __fmaf_rn(high[j], high[j], __fmaf_rn(low[j], low[j], squares));
    const float factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(head_dim) + p.eps);
    LLMSRV_UNROLL
    for (int j = 0; j < kPairsMax; ++j) {
      const int i = lane + j * kWarpThreads;
      if (i >= half) continue;
      low[j] *= factor * weight[i];
      high[j] *= factor * weight[i + half];
    }
  }
  Kv* stored = p.cache.data;
  if (!is_query) {
    const int kv_head = head - p.heads - (is_value ? kv_heads : 0);
    stored += p.cache.key_at(p.slot_blocks[row], kv_head, p.slot_offsets[row]);
    if (is_value) stored += p.cache.half_block();
  }
  const std::size_t table = static_cast<std::size_t>(p.positions[row]) * static_cast<std::size_t>(half);
  LLMSRV_UNROLL
  for (int j = 0; j < kPairsMax; ++j) {
    const int i = lane + j * kWarpThreads;
    if (i >= half) continue;
    if (is_value) {
      stored[i] = from_float<Kv>(low[j]);
      stored[i + half] = from_float<Kv>(high[j]);
      continue;
    }
    const float cos = p.cos[table + static_cast<std::size_t>(i)];
    const float sin = p.sin[table + static_cast<std::size_t>(i)];
    const float first = __fmaf_rn(low[j], cos, -__fmul_rn(high[j], sin));
    const float second = __fmaf_rn(high[j], cos, __fmul_rn(low[j], sin));
    if (is_query) {
      x[i] = from_float<T>(first);
      x[i + half] = from_float<T>(second);
    } else {
      stored[i] = from_float<Kv>(first);
      stored[i + half] = from_float<Kv>(second);
    }
  }
}

}  // namespace llmsrv::cuda
