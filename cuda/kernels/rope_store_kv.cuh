// Norms each head of the queries and keys if weights are given, rotates it by the row's position, and stores keys and
// values in the cache, of one-byte types with a scale for each head of a row. Queries are changed in place; keys and
// values of the input are left as they were.
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
  const std::int32_t* slot_blocks = nullptr;   // [rows]; negative: the row is stored nowhere
  const std::int32_t* slot_offsets = nullptr;  // [rows]
  KvLayout<Kv> cache;
  int rows = 0;
  int heads = 0;
};

constexpr int kRopeWarps = 4;
constexpr int kHeadDimMax = 256;

// A lane's pairs (i, i + head_dim / 2) of a head, i = lane, lane + 32, ...
struct LanePairs {
  static constexpr int kCount = kHeadDimMax / 2 / kWarpThreads;
  float low[kCount];
  float high[kCount];

  // Calls f(j, i) for each pair of this lane.
  template <typename F>
  __device__ static void for_each(int half, const F& f) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    LLMSRV_UNROLL
    for (int j = 0; j < kCount; ++j) {
      if (lane + j * kWarpThreads < half) f(j, lane + j * kWarpThreads);
    }
  }
  // x[i] * weight[i] / sqrt(mean_j(x[j]^2) + eps) over the head.
  __device__ void norm(const float* weight, float eps, int half) {
    float squares = 0.0f;
    for_each(half, [&](int j, int) { squares = __fmaf_rn(high[j], high[j], __fmaf_rn(low[j], low[j], squares)); });
    const float factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(2 * half) + eps);
    for_each(half, [&](int j, int i) {
      low[j] *= factor * weight[i];
      high[j] *= factor * weight[i + half];
    });
  }
  __device__ void rotate(const float* cos, const float* sin, int half) {
    for_each(half, [&](int j, int i) {
      const float before = low[j];
      low[j] = __fmaf_rn(before, cos[i], -__fmul_rn(high[j], sin[i]));
      high[j] = __fmaf_rn(high[j], cos[i], __fmul_rn(before, sin[i]));
    });
  }
  template <typename To>
  __device__ void store(To* to, int half) const {
    for_each(half, [&](int j, int i) {
      to[i] = from_float<To>(low[j]);
      to[i + half] = from_float<To>(high[j]);
    });
  }
  // Stores numbers that stand for themselves times the scale, which it returns.
  template <typename To>
  __device__ float store_scaled(To* to, int half) const {
    std::uint32_t largest = 0;
    for_each(half, [&](int j, int) {
      largest = max(largest, max(__float_as_uint(low[j]) & 0x7fffffffu, __float_as_uint(high[j]) & 0x7fffffffu));
    });
    const Scale scale = scale_for<To>(warp_max(largest));
    for_each(half, [&](int j, int i) {
      to[i] = narrow<To>(__fmul_rn(low[j], scale.inverse));
      to[i + half] = narrow<To>(__fmul_rn(high[j], scale.inverse));
    });
    return scale.scale;
  }
};

template <typename T, typename Kv>
__global__ void __launch_bounds__(kRopeWarps* kWarpThreads) rope_store_kv_kernel(const RopeStoreKvParams<T, Kv> p) {
  const int head_dim = p.cache.head_dim;
  const int half = head_dim / 2;
  const int kv_heads = p.cache.kv_heads;
  const int row = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y) * kRopeWarps + static_cast<int>(threadIdx.x) / kWarpThreads;
  if (head >= p.heads + 2 * kv_heads) return;  // whole warps leave
  const bool is_query = head < p.heads;
  const bool is_value = head >= p.heads + kv_heads;
  T* x = p.qkv + static_cast<std::size_t>(row) * static_cast<std::size_t>((p.heads + 2 * kv_heads) * head_dim) +
         static_cast<std::size_t>(head * head_dim);

  LanePairs pairs;
  LanePairs::for_each(half, [&](int j, int i) {
    pairs.low[j] = to_float(x[i]);
    pairs.high[j] = to_float(x[i + half]);
  });
  if (!is_value) {
    const float* weight = is_query ? p.query_norm : p.key_norm;
    if (weight != nullptr) pairs.norm(weight, p.eps, half);
    const std::size_t angles = static_cast<std::size_t>(p.positions[row]) * static_cast<std::size_t>(half);
    pairs.rotate(p.cos + angles, p.sin + angles, half);
  }
  if (is_query) return pairs.store(x, half);
  const int kv_head = head - p.heads - (is_value ? kv_heads : 0);
  const int block = p.slot_blocks[row];
  if (block < 0) return;  // a row of padding; whole warps leave
  const int offset = p.slot_offsets[row];
  Kv* slot = p.cache.data + p.cache.key_at(block, kv_head, offset) + (is_value ? p.cache.half_block() : 0);
  if constexpr (kIsScaled<Kv>) {
    const float scale = pairs.store_scaled(slot, half);
    float2* scales = p.cache.scales_at(block, kv_head, offset);
    if (threadIdx.x % kWarpThreads == 0) (is_value ? scales->y : scales->x) = scale;
  } else {
    pairs.store(slot, half);
  }
}

}  // namespace llmsrv::cuda
