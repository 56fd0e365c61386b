#include "cuda/emulation/planted_defects.h"

#include "cuda/kernels/device_hopper.cuh"
#include "cuda/kernels/reduce.cuh"

namespace llmsrv::cuda {
namespace {

__global__ void reverse_block(int* out, bool with_barrier) {
  LLMSRV_SHARED(int, values, 64);
  const unsigned i = threadIdx.x;
  values[i] = static_cast<int>(i);
  if (with_barrier) __syncthreads();  // the other end's value is there
  out[i] = values[63 - i];
}

__global__ void reverse_warp(int* out, bool with_barrier) {
  LLMSRV_SHARED(int, values, 32);
  const unsigned i = threadIdx.x;
  values[i] = static_cast<int>(i);
  if (with_barrier) __syncwarp();  // the other end's value is there
  out[i] = values[31 - i];
}

__global__ void copy_through_shared(const int* in, int* out, bool with_wait) {
  LLMSRV_SHARED(int, values, 128);
  const unsigned at = threadIdx.x * 4;
  copy_async_16(values + at, in + at, true);
  commit_copies();
  if (with_wait) wait_for_copies<0>();
  for (unsigned i = 0; i < 4; ++i) out[at + i] = values[at + i];
}

__global__ void diverge(int*) {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void deadlock(int*) {
  if (threadIdx.x == 3) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

__global__ void shuffle_outside_mask(int* out) {
  if (threadIdx.x < 4) out[threadIdx.x] = __shfl_sync(0xf0u, 1, 0);
}

__global__ void copy_misaligned(int* out) {
  LLMSRV_SHARED(int, values, 8);
  copy_async_16(values + 1, out, true);
}

__global__ void all_blocks_write_one(int* out) { out[0] = static_cast<int>(threadIdx.x); }

__global__ void count_with_atomics(int* out) {
  atomicAdd(out, 1);
  if (threadIdx.x % 2 == 0) return;  // who has left holds no barrier up
  __syncthreads();
  atomicMax(out + 1, static_cast<int>(threadIdx.x));
}

__global__ void warp_functions(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  out[lane] = __shfl_xor_sync(kAllLanes, lane, 5) + 100 * __shfl_sync(kAllLanes, lane, 7) +
              10000 * __shfl_up_sync(kAllLanes, lane, 1);
  out[32 + lane] = static_cast<int>(__ballot_sync(kAllLanes, lane % 3 == 0));
  out[64 + lane] = static_cast<int>(warp_sum(static_cast<float>(lane)));
}

enum class BoxDefect { kNone, kHiddenBarrier, kTooManyArrivals, kTooManyBytes, kWrongPlace, kLeftUnderWay };

// Copies 8 rows of 64 elements into shared memory and, swizzled as they are, back to `memory`.
__global__ void copy_box_there_and_back(int* memory, const LLMSRV_GRID_CONSTANT TileMap map, BoxDefect defect) {
  LLMSRV_DYNAMIC_SHARED(shared);
  unsigned char* tile = shared + (kPatternBytes - shared_address(shared) % kPatternBytes) % kPatternBytes;
  auto* const landed = reinterpret_cast<std::uint64_t*>(tile + kPatternBytes);
  init_barrier(landed, 1);
  if (defect != BoxDefect::kHiddenBarrier) show_barriers();
  arrive_expecting(landed, kPatternBytes + (defect == BoxDefect::kTooManyBytes ? 16 : 0));
  if (defect == BoxDefect::kTooManyArrivals) arrive(landed);
  copy_box(defect == BoxDefect::kWrongPlace ? tile - 128 : tile, map, 0, 0, landed);
  if (defect == BoxDefect::kLeftUnderWay) return;
  wait_for_phase(landed, 0);
  for (int i = 0; i < kPatternBytes / 4; ++i) memory[i] = reinterpret_cast<const int*>(tile)[i];
}

enum class ProductDefect { kNone, kNoFence, kWrongPattern, kNoWait };

// The product of ones and ones.
__global__ void multiply_ones(int* out, ProductDefect defect) {
  LLMSRV_DYNAMIC_SHARED(shared);
  unsigned char* tile = shared + (kPatternBytes - shared_address(shared) % kPatternBytes) % kPatternBytes;
  constexpr std::uint32_t kOnes = 0x3f803f80;
  for (unsigned chunk = threadIdx.x; chunk < 32 * 8; chunk += kWarpGroupThreads) {
    store_for_products(tile + chunk * 16, {kOnes, kOnes, kOnes, kOnes});
  }
  fence_async_proxy();
  __syncthreads();
  const std::uint32_t a[4] = {kOnes, kOnes, kOnes, kOnes};
  float d[4][4] = {};
  if (defect != ProductDefect::kNoFence) fence_products(d);
  start_product<false>(d, a, rows_of_tile(defect == ProductDefect::kWrongPattern ? tile + 256 : tile), true);
  commit_products();
  if (defect != ProductDefect::kNoWait) wait_for_products<0>(d);
  out[threadIdx.x] = static_cast<int>(d[3][3]);
}

constexpr std::size_t kHopperPlantedBytes = 6 << 10;

bool run_planted_hopper(const std::string& name, int* memory) {
  const auto box = [&](BoxDefect defect) {
    const TileMap map = make_tile_map({reinterpret_cast<const Bf16*>(memory), 8, kSwizzleCols, 8});
    launch(copy_box_there_and_back, {dim3(1), dim3(1), kHopperPlantedBytes}, nullptr, memory, map, defect);
    return true;
  };
  const auto product = [&](ProductDefect defect) {
    launch(multiply_ones, {dim3(1), dim3(kWarpGroupThreads), kHopperPlantedBytes}, nullptr, memory, defect);
    return true;
  };
  if (name == "box copy") return box(BoxDefect::kNone);
  if (name == "barrier that copies may not see") return box(BoxDefect::kHiddenBarrier);
  if (name == "too many arrivals") return box(BoxDefect::kTooManyArrivals);
  if (name == "bytes that never come") return box(BoxDefect::kTooManyBytes);
  if (name == "box at a wrong place") return box(BoxDefect::kWrongPlace);
  if (name == "box left under way") return box(BoxDefect::kLeftUnderWay);
  if (name == "product") return product(ProductDefect::kNone);
  if (name == "product without a fence") return product(ProductDefect::kNoFence);
  if (name == "product of a wrong pattern") return product(ProductDefect::kWrongPattern);
  if (name == "product left under way") return product(ProductDefect::kNoWait);
  return false;
}

}  // namespace

void run_planted(const std::string& name, int* memory) {
  const auto one_block = [&](void (*kernel)(int*), unsigned threads) {
    launch(kernel, {dim3(1), dim3(threads)}, nullptr, memory);
  };
  const bool good = !name.starts_with("no ");
  if (name.ends_with("block barrier")) return launch(reverse_block, {dim3(1), dim3(64)}, nullptr, memory, good);
  if (name.ends_with("warp barrier")) return launch(reverse_warp, {dim3(1), dim3(32)}, nullptr, memory, good);
  if (name.ends_with("copy wait")) {
    return launch(copy_through_shared, {dim3(1), dim3(32)}, nullptr, memory, memory + 128, good);
  }
  if (name == "diverging barriers") return one_block(diverge, 32);
  if (name == "deadlock") return one_block(deadlock, 32);
  if (name == "mask without the caller") return one_block(shuffle_outside_mask, 32);
  if (name == "misaligned copy") return one_block(copy_misaligned, 32);
  if (name == "blocks that collide") return launch(all_blocks_write_one, {dim3(2), dim3(1)}, nullptr, memory);
  if (name == "atomics") return launch(count_with_atomics, {dim3(3), dim3(64)}, nullptr, memory);
  if (name == "warp functions") return one_block(warp_functions, 32);
  if (name == "too much shared memory") {
    return launch(warp_functions, {dim3(1), dim3(32), std::size_t{228} << 10}, nullptr, memory);
  }
  if (run_planted_hopper(name, memory)) return;
  throw std::invalid_argument("no such planted kernel: " + name);
}

}  // namespace llmsrv::cuda
