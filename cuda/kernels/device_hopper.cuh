// What device.cuh is for the rest, for Hopper alone (sm_90a): barriers that count bytes, copies of boxes by the tensor
// memory accelerator, products of a warp group. A warp group is four warps in a row, the first a multiple of four.
#pragma once

#include <cuda.h>

#include "cuda/kernels/device.cuh"

namespace llmsrv::cuda {

constexpr int kWarpGroupThreads = 128;
constexpr int kPatternBytes = 1024;  // what the swizzle repeats after: boxes and tiles start at multiples of it
constexpr int kSwizzleCols = 64;     // of 16 bits: 128 bytes, a row of the pattern

// A matrix of bf16 in global memory and the box of kSwizzleCols columns that one copy takes of it.
struct TileOfMatrix {
  const Bf16* data = nullptr;  // aligned to 16 bytes
  std::uint64_t rows = 0;
  std::uint64_t cols = 0;  // a multiple of 8
  std::uint32_t box_rows = 0;
};

#if defined(__CUDACC__)

// Kernels that use what is below are empty for other targets.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LLMSRV_FOR_HOPPER
#endif
#define LLMSRV_GRID_CONSTANT __grid_constant__
using TileMap = CUtensorMap;

// The driver's function, which nothing links. Throws std::runtime_error.
inline auto find_map_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    throw std::runtime_error("CUDA: the driver has no tensor maps");
  }
  return reinterpret_cast<decltype(&::cuTensorMapEncodeTiled)>(function);
}

// Throws std::runtime_error.
inline TileMap make_tile_map(const TileOfMatrix& tile) {
  static const auto kEncode = find_map_encoder();
  const cuuint64_t sizes[2] = {tile.cols, tile.rows};
  const cuuint64_t row_bytes[1] = {tile.cols * sizeof(Bf16)};
  const cuuint32_t box[2] = {kSwizzleCols, tile.box_rows};
  const cuuint32_t steps[2] = {1, 1};
  TileMap map;
  const CUresult result = kEncode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<Bf16*>(tile.data), sizes,
                                  row_bytes, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) throw std::runtime_error("CUDA: no tensor map, error " + std::to_string(result));
  return map;
}

__device__ __forceinline__ void init_barrier(std::uint64_t* barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Copies see the barriers that this thread has initialized; other threads do behind a __syncthreads.
__device__ __forceinline__ void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// One arrival of this phase, and bytes that copies will bring before it can end.
__device__ __forceinline__ void arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void arrive_expecting(std::uint64_t* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
// Waits for the end of the phase of this parity. The first phase has parity 0.
__device__ __forceinline__ void wait_for_phase(std::uint64_t* barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred done;\nWAIT_%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra "
      "WAIT_%=;\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// Starts the copy of the box from (col, row) on; its bytes count at the barrier when they have landed. Row y of the box
// goes to 128 y, its 16-byte chunk x to place x ^ (y % 8). Elements outside of the matrix become zeros.
__device__ __forceinline__ void copy_box(void* to, const TileMap& map, int col, int row, std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared_address(to)),
      "l"(&map), "r"(col), "r"(row), "r"(shared_address(barrier))
      : "memory");
}

// 16 bytes in shared memory for products to see, behind fence_async_proxy() and a barrier.
__device__ __forceinline__ void store_for_products(void* to, const uint4& value) { *static_cast<uint4*>(to) = value; }
// Products and copies see what this thread has stored in shared memory.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Keeps the compiler from moving what is done with d across this point: it does not know that products are under way.
template <int kBlocks>
__device__ __forceinline__ void pin(float (&d)[kBlocks][4]) {
  LLMSRV_UNROLL
  for (int n = 0; n < kBlocks; ++n) {
    LLMSRV_UNROLL
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[n][i])::"memory");
  }
}
// Before products that add to d or read a: whatever this thread has done with these registers is done.
template <int... kBlocks>
__device__ __forceinline__ void fence_products(float (&... d)[kBlocks][4]) {
  (pin(d), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most kGroups groups of products are under way. d is theirs that have ended.
template <int kGroups, int kBlocks>
__device__ __forceinline__ void wait_for_products(float (&d)[kBlocks][4]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
  pin(d);
}

// Starts d += a b, or d = a b without `add`, of a warp group: each warp's 16 rows of a and d lie in its registers as in
// multiply_add, d in steps of 8 columns; b [16, columns] in shared memory is named by a descriptor.
#define LLMSRV_FOUR(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
template <bool kAcross>
__device__ __forceinline__ void start_product(float (&d)[4][4], const std::uint32_t (&a)[4], std::uint64_t b,
                                              bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
      "}, {%16,%17,%18,%19}, %20, p, 1, 1, %22;\n}"
      : LLMSRV_FOUR(d[0]), LLMSRV_FOUR(d[1]), LLMSRV_FOUR(d[2]), LLMSRV_FOUR(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{add}), "n"(kAcross ? 1 : 0));
}
template <bool kAcross>
__device__ __forceinline__ void start_product(float (&d)[8][4], const std::uint32_t (&a)[4], std::uint64_t b,
                                              bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"
      "%26,%27,%28,%29,%30,%31"
      "}, {%32,%33,%34,%35}, %36, p, 1, 1, %38;\n}"
      : LLMSRV_FOUR(d[0]), LLMSRV_FOUR(d[1]), LLMSRV_FOUR(d[2]), LLMSRV_FOUR(d[3]), LLMSRV_FOUR(d[4]),
        LLMSRV_FOUR(d[5]), LLMSRV_FOUR(d[6]), LLMSRV_FOUR(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{add}), "n"(kAcross ? 1 : 0));
}
template <bool kAcross>
__device__ __forceinline__ void start_product(float (&d)[16][4], const std::uint32_t (&a)[4], std::uint64_t b,
                                              bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"
      "%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,"
      "%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
      "}, {%64,%65,%66,%67}, %68, p, 1, 1, %70;\n}"
      : LLMSRV_FOUR(d[0]), LLMSRV_FOUR(d[1]), LLMSRV_FOUR(d[2]), LLMSRV_FOUR(d[3]), LLMSRV_FOUR(d[4]),
        LLMSRV_FOUR(d[5]), LLMSRV_FOUR(d[6]), LLMSRV_FOUR(d[7]), LLMSRV_FOUR(d[8]), LLMSRV_FOUR(d[9]),
        LLMSRV_FOUR(d[10]), LLMSRV_FOUR(d[11]), LLMSRV_FOUR(d[12]), LLMSRV_FOUR(d[13]), LLMSRV_FOUR(d[14]),
        LLMSRV_FOUR(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{add}), "n"(kAcross ? 1 : 0));
}
#undef LLMSRV_FOUR

// Registers of a warp group's threads from here on. Called by all of its threads.
template <int kCount>
__device__ __forceinline__ void give_registers_back() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

#else

#define LLMSRV_FOR_HOPPER
#define LLMSRV_GRID_CONSTANT
struct TileMap {
  emulation::TileMap fields;
};

inline TileMap make_tile_map(const TileOfMatrix& tile) {
  return {emulation::make_tile_map({reinterpret_cast<const unsigned char*>(tile.data), tile.rows, tile.cols,
                                    tile.cols * sizeof(Bf16), tile.box_rows, kSwizzleCols})};
}
inline std::uint32_t shared_address(const void* memory, LLMSRV_HERE) {
  return emulation::shared_address(memory, location);
}
inline void init_barrier(std::uint64_t* barrier, unsigned arrivals, LLMSRV_HERE) {
  emulation::init_barrier(barrier, arrivals, location);
}
inline void show_barriers(LLMSRV_HERE) { emulation::show_barriers(location); }
inline void arrive(std::uint64_t* barrier, LLMSRV_HERE) { emulation::arrive(barrier, 0, location); }
inline void arrive_expecting(std::uint64_t* barrier, unsigned bytes, LLMSRV_HERE) {
  emulation::arrive(barrier, bytes, location);
}
inline void wait_for_phase(std::uint64_t* barrier, unsigned parity, LLMSRV_HERE) {
  emulation::wait_for_phase(barrier, parity, location);
}
inline void copy_box(void* to, const TileMap& map, int col, int row, std::uint64_t* barrier, LLMSRV_HERE) {
  emulation::copy_box(to, map.fields, col, row, barrier, location);
}
inline void store_for_products(void* to, const uint4& value, LLMSRV_HERE) {
  emulation::store_for_products(to, value, location);
}
inline void fence_async_proxy(LLMSRV_HERE) { emulation::fence_async_proxy(location); }
template <int kBlocks>
void fence_products(float (&)[kBlocks][4], LLMSRV_HERE) {
  emulation::fence_products(location);
}
template <int kBlocks, int kOtherBlocks>
void fence_products(float (&)[kBlocks][4], float (&)[kOtherBlocks][4], LLMSRV_HERE) {
  emulation::fence_products(location);
}
inline void commit_products() { emulation::commit_products(); }
template <int kGroups, int kBlocks>
void wait_for_products(float (&)[kBlocks][4], LLMSRV_HERE) {
  emulation::wait_for_products(kGroups, location);
}
template <bool kAcross, int kBlocks>
void start_product(float (&d)[kBlocks][4], const std::uint32_t (&a)[4], std::uint64_t b, bool add, LLMSRV_HERE) {
  emulation::start_product({d[0], a, b, kBlocks * 8, kAcross, add}, location);
}
template <int kCount>
void give_registers_back() {}
template <int kCount>
void take_registers() {}

#endif

// Descriptors of a tile in shared memory as copy_box leaves it: rows of kSwizzleCols columns, 128 bytes each.
constexpr std::uint64_t kSwizzledBy128 = std::uint64_t{1} << 62;
constexpr std::uint64_t kNextEightRows = std::uint64_t{kPatternBytes >> 4} << 32;
__device__ inline std::uint64_t start_of_tile(const void* tile) { return (shared_address(tile) & 0x3ffff) >> 4; }
// The tile's rows are the columns of b, its first 16 columns the depth (start_product<false>).
__device__ inline std::uint64_t rows_of_tile(const void* tile) {
  constexpr std::uint64_t kNotUsed = std::uint64_t{1} << 16;
  return start_of_tile(tile) | kNotUsed | kNextEightRows | kSwizzledBy128;
}
// The tile's columns are the columns of b, its first 16 rows the depth (start_product<true>). Columns beyond
// kSwizzleCols continue in the next tile, next_bytes behind this one.
__device__ inline std::uint64_t columns_of_tile(const void* tile, int next_bytes) {
  return start_of_tile(tile) | static_cast<std::uint64_t>(next_bytes >> 4) << 16 | kNextEightRows | kSwizzledBy128;
}
// The same from `bytes` further on: 2 a column, within kSwizzleCols; 128 a row, by eight rows.
__device__ inline std::uint64_t further_on(std::uint64_t tile, int bytes) {
  return tile + static_cast<std::uint64_t>(bytes >> 4);
}

}  // namespace llmsrv::cuda
