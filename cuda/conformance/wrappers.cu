#include "cuda/conformance/wrappers.h"

#include "cuda/kernels/reduce.cuh"

namespace llmsrv::cuda {
namespace {

constexpr int kCopyThreads = kTriedCopies / 2;
constexpr int kMapThreads = 128;
constexpr int kSharedThreads = 256;
constexpr int kSharedWords = kTriedSharedBytes / static_cast<int>(sizeof(std::uint32_t));

__device__ void copy_chunk(uint4* to, const uint4* from, bool wanted) { copy_async_16(to, from, wanted); }
__device__ void copy_chunk(std::uint32_t* to, const std::uint32_t* from, bool wanted) {
  copy_async_4(to, from, wanted);
}

__device__ void fill(uint4& chunk) { chunk = {~0u, ~0u, ~0u, ~0u}; }
__device__ void fill(std::uint32_t& chunk) { chunk = ~0u; }

template <typename T>
__global__ void copy_async_kernel(const T* in, const std::int32_t* wanted, T* out) {
  LLMSRV_SHARED(T, tile, kTriedCopies);
  const int i = static_cast<int>(threadIdx.x);
  constexpr int kLast = kCopyThreads - 1;
  fill(tile[kLast - i]);
  fill(tile[kTriedCopies - 1 - i]);
  __syncthreads();  // what a copy overwrites, another thread has written
  copy_chunk(tile + i, in + i, wanted[i] != 0);
  commit_copies();
  copy_chunk(tile + kCopyThreads + i, in + kCopyThreads + i, wanted[kCopyThreads + i] != 0);
  commit_copies();
  wait_for_copies<1>();
  __syncthreads();  // every thread's first copy is there
  out[i] = tile[kLast - i];
  wait_for_copies<0>();
  __syncthreads();  // and its second
  out[kCopyThreads + i] = tile[kTriedCopies - 1 - i];
}

template <bool kTransposed>
__global__ void load_matrices_kernel(const uint4* in, const std::int32_t* rows, std::uint32_t* out) {
  LLMSRV_SHARED(uint4, tile, kTriedRows);
  const int lane = static_cast<int>(threadIdx.x);
  tile[lane] = in[lane];
  __syncwarp();  // every row is there
  std::uint32_t registers[4];
  load_matrices<kTransposed>(registers, tile + rows[lane]);
  for (int i = 0; i < 4; ++i) out[lane * 4 + i] = registers[i];
}

__device__ std::uint32_t pair_at(const std::uint16_t* row, int col) {
  return *reinterpret_cast<const std::uint32_t*>(row + col);
}

template <typename T>
__global__ void multiply_add_kernel(const TriedProducts p) {
  const int lane = static_cast<int>(threadIdx.x);
  const int tile = static_cast<int>(blockIdx.x);
  const int row = lane / 4;
  const int col = lane % 4 * 2;
  const std::uint16_t* a = p.a + (tile * 16 + row) * p.depth + col;
  const std::uint16_t* b = p.b + (tile * 8 + row) * p.depth + col;
  const int at = (tile * 16 + row) * 8 + col;
  float sums[4] = {p.c[at], p.c[at + 1], p.c[at + 64], p.c[at + 65]};
  for (int k = 0; k < p.depth; k += 16) {
    const std::uint32_t left[4] = {pair_at(a, k), pair_at(a + 8 * p.depth, k), pair_at(a, k + 8),
                                   pair_at(a + 8 * p.depth, k + 8)};
    multiply_add<T>(sums, left, {pair_at(b, k), pair_at(b, k + 8)});
  }
  p.d[at] = sums[0];
  p.d[at + 1] = sums[1];
  p.d[at + 64] = sums[2];
  p.d[at + 65] = sums[3];
}

__global__ void warp_functions_kernel(const std::int32_t* in, std::int32_t* out) {
  const int lane = static_cast<int>(threadIdx.x);
  const int value = in[lane];
  for (int i = 0; i < 5; ++i) out[i * kWarpThreads + lane] = __shfl_xor_sync(kAllLanes, value, 1 << i);
  out[5 * kWarpThreads + lane] = __shfl_sync(kAllLanes, value, value % kWarpThreads);
  out[6 * kWarpThreads + lane] = __shfl_up_sync(kAllLanes, value, 1);
  out[7 * kWarpThreads + lane] = __shfl_up_sync(kAllLanes, value, 7);
  out[8 * kWarpThreads + lane] = static_cast<int>(__ballot_sync(kAllLanes, value % 3 == 0));
  out[9 * kWarpThreads + lane] = __ffs(value) - 1;
}

__global__ void sums_kernel(const TriedSums p) {
  LLMSRV_SHARED(float, partial, kWarpThreads);
  const int at = static_cast<int>(blockIdx.x) * p.threads + static_cast<int>(threadIdx.x);
  p.of_warp[at] = warp_sum(p.in[at]);
  p.of_block[at] = block_sum(p.in[at], partial);
}

__global__ void shared_memory_kernel(const std::uint32_t* in, std::uint32_t* out) {
  LLMSRV_DYNAMIC_SHARED(shared);
  auto* words = reinterpret_cast<std::uint32_t*>(shared);
  const int first = static_cast<int>(blockIdx.x) * kSharedWords;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kSharedWords; i += kSharedThreads) words[i] = in[first + i];
  __syncthreads();  // the other end's words are there
  for (int i = thread; i < kSharedWords; i += kSharedThreads) out[first + i] = words[kSharedWords - 1 - i];
}

__global__ void atomics_kernel(const std::int32_t* in, std::int32_t* out, int count) {
  const int at = static_cast<int>(blockIdx.x) * kMapThreads + static_cast<int>(threadIdx.x);
  if (at >= count) return;
  atomicAdd(out, in[at]);
  atomicMax(out + 1, in[at]);
}

template <typename F, typename In, typename Out>
__global__ void map_kernel(const In* in, Out* out, int count) {
  const int at = static_cast<int>(blockIdx.x) * kMapThreads + static_cast<int>(threadIdx.x);
  if (at < count) out[at] = F::of(in[at]);
}

Grid grid_of(int count) { return {dim3(static_cast<unsigned>(ceil_div(count, kMapThreads))), dim3(kMapThreads)}; }

template <typename F, typename In, typename Out>
void map(const In* in, Out* out, int count, Stream stream) {
  launch(map_kernel<F, In, Out>, grid_of(count), stream, in, out, count);
}

struct Exp2 {
  __device__ static float of(float x) { return exp2_fast(x); }
};
struct ToBf16 {
  __device__ static std::uint16_t of(float x) { return bits_of(__float2bfloat16(x)); }
};
struct HalfToFloat {
  __device__ static float of(std::uint16_t bits) { return __half2float(half_of_bits(bits)); }
};
struct ToHalf {
  __device__ static std::uint16_t of(float x) { return bits_of(from_float<Half>(x)); }
};
template <typename T>
struct PackPair {
  __device__ static std::uint32_t of(float2 pair) { return pack_pair<T>(pair.x, pair.y); }
};
template <typename T>
struct SubtractPairs {
  __device__ static std::uint32_t of(uint2 pairs) { return subtract_pairs<T>(pairs.x, pairs.y); }
};
template <typename T>
struct MultiplyPairs {
  __device__ static std::uint32_t of(uint2 pairs) { return multiply_pairs<T>(pairs.x, pairs.y); }
};
struct BytePerm {
  __device__ static std::uint32_t of(uint4 words) { return __byte_perm(words.x, words.y, words.z); }
};

}  // namespace

void try_copy_async(const uint4* in, const std::int32_t* wanted, uint4* out, Stream stream) {
  launch(copy_async_kernel<uint4>, {dim3(1), dim3(kCopyThreads)}, stream, in, wanted, out);
}
void try_copy_async(const std::uint32_t* in, const std::int32_t* wanted, std::uint32_t* out, Stream stream) {
  launch(copy_async_kernel<std::uint32_t>, {dim3(1), dim3(kCopyThreads)}, stream, in, wanted, out);
}

void try_load_matrices(bool transposed, const uint4* in, const std::int32_t* rows, std::uint32_t* out, Stream stream) {
  launch(transposed ? load_matrices_kernel<true> : load_matrices_kernel<false>, {dim3(1), dim3(kWarpThreads)}, stream,
         in, rows, out);
}

void try_multiply_add(const TriedProducts& products, Stream stream) {
  const auto kernel = products.operands == Operands::kBf16 ? multiply_add_kernel<Bf16> : multiply_add_kernel<Half>;
  launch(kernel, {dim3(static_cast<unsigned>(products.tiles)), dim3(kWarpThreads)}, stream, products);
}

void try_warp_functions(const std::int32_t* in, std::int32_t* out, Stream stream) {
  launch(warp_functions_kernel, {dim3(1), dim3(kWarpThreads)}, stream, in, out);
}

void try_sums(const TriedSums& sums, Stream stream) {
  launch(sums_kernel, {dim3(static_cast<unsigned>(sums.blocks)), dim3(static_cast<unsigned>(sums.threads))}, stream,
         sums);
}

void try_shared_memory(const std::uint32_t* in, std::uint32_t* out, int blocks, Stream stream) {
  launch(shared_memory_kernel, {dim3(static_cast<unsigned>(blocks)), dim3(kSharedThreads), kTriedSharedBytes}, stream,
         in, out);
}

void try_atomics(const std::int32_t* in, std::int32_t* out, int count, Stream stream) {
  launch(atomics_kernel, grid_of(count), stream, in, out, count);
}

void try_exp2(const float* in, float* out, int count, Stream stream) { map<Exp2>(in, out, count, stream); }
void try_to_bf16(const float* in, std::uint16_t* out, int count, Stream stream) { map<ToBf16>(in, out, count, stream); }
void try_to_half(const float* in, std::uint16_t* out, int count, Stream stream) { map<ToHalf>(in, out, count, stream); }
void try_half_to_float(const std::uint16_t* in, float* out, int count, Stream stream) {
  map<HalfToFloat>(in, out, count, stream);
}
void try_pack_pair(const float2* in, std::uint32_t* out, int count, Operands operands, Stream stream) {
  operands == Operands::kBf16 ? map<PackPair<Bf16>>(in, out, count, stream)
                              : map<PackPair<Half>>(in, out, count, stream);
}
void try_subtract_pairs(const uint2* in, std::uint32_t* out, int count, Operands operands, Stream stream) {
  operands == Operands::kBf16 ? map<SubtractPairs<Bf16>>(in, out, count, stream)
                              : map<SubtractPairs<Half>>(in, out, count, stream);
}
void try_multiply_pairs(const uint2* in, std::uint32_t* out, int count, Operands operands, Stream stream) {
  operands == Operands::kBf16 ? map<MultiplyPairs<Bf16>>(in, out, count, stream)
                              : map<MultiplyPairs<Half>>(in, out, count, stream);
}
void try_byte_perm(const uint4* in, std::uint32_t* out, int count, Stream stream) {
  map<BytePerm>(in, out, count, stream);
}

}  // namespace llmsrv::cuda
