// Everything in which nvcc and the emulated build differ: single instructions, shared memory, launches. The only file
// of the kernels that asks which of the two compiles it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace llmsrv::cuda {

using Bf16 = __nv_bfloat16;
using Half = __half;
using Stream = cudaStream_t;

constexpr int kWarpThreads = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

struct Grid {
  dim3 blocks;
  dim3 threads;
  std::size_t shared_bytes = 0;  // dynamic
};

#if defined(__CUDACC__)

#define LLMSRV_DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#define LLMSRV_SHARED(type, name, count) __shared__ type name[count]
#define LLMSRV_UNROLL _Pragma("unroll")
#define LLMSRV_UNROLL_BY_4 _Pragma("unroll 4")

__device__ __forceinline__ std::uint32_t shared_address(const void* memory) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
}

// Starts a copy of 16 bytes from global to shared memory; writes zeros and reads nothing unless `wanted`.
__device__ __forceinline__ void copy_async_16(void* to, const void* from, bool wanted) {
  const int bytes = wanted ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
               : "memory");
}
// The same of 4 bytes.
__device__ __forceinline__ void copy_async_4(void* to, const void* from, bool wanted) {
  const int bytes = wanted ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kGroups of this thread's groups are under way. Other threads' copies need a barrier behind it.
template <int kGroups>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// Four 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8. Lane i receives of each
// matrix elements 2 (i % 4) and + 1 of row i / 4; transposed, of column i / 4.
template <bool kTransposed>
__device__ __forceinline__ void load_matrices(std::uint32_t (&registers)[4], const void* row) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                 : "r"(shared_address(row))
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                 : "r"(shared_address(row))
                 : "memory");
  }
}

// d += a b: a [16, 16] by rows, b [16, 8] by columns, both Bf16 or Half; sums are floats. With g = lane / 4,
// t = 2 (lane % 4):
//   a: rows g, g + 8, g, g + 8; columns t, t + 1 (registers 0, 1) and t + 8, t + 9 (registers 2, 3)
//   b: column g; rows t, t + 1 (register 0) and t + 8, t + 9 (register 1)
//   d: row g: columns t, t + 1; row g + 8: the same
template <typename T = Bf16>
__device__ __forceinline__ void multiply_add(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, Bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

__device__ __forceinline__ float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// a - b and a b of two pairs of Bf16 or Half.
template <typename T>
using Pair = std::conditional_t<std::is_same_v<T, Bf16>, __nv_bfloat162, __half2>;
template <typename T = Bf16>
__device__ __forceinline__ std::uint32_t subtract_pairs(std::uint32_t a, std::uint32_t b) {
  const Pair<T> difference = __hsub2(*reinterpret_cast<const Pair<T>*>(&a), *reinterpret_cast<const Pair<T>*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&difference);
}
template <typename T>
__device__ __forceinline__ std::uint32_t multiply_pairs(std::uint32_t a, std::uint32_t b) {
  const Pair<T> product = __hmul2(*reinterpret_cast<const Pair<T>*>(&a), *reinterpret_cast<const Pair<T>*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&product);
}

__device__ __forceinline__ Half half_of_bits(std::uint16_t bits) { return __ushort_as_half(bits); }
__device__ __forceinline__ std::uint16_t bits_of(Bf16 value) { return __bfloat16_as_ushort(value); }
__device__ __forceinline__ std::uint16_t bits_of(Half value) { return __half_as_ushort(value); }

template <typename... P, typename... A>
void launch(void (*kernel)(P...), const Grid& grid, Stream stream, A&&... arguments) {
  cudaError_t error = cudaSuccess;
  if (grid.shared_bytes > 48 << 10) {
    error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(grid.shared_bytes));
  }
  if (error == cudaSuccess) {
    kernel<<<grid.blocks, grid.threads, grid.shared_bytes, stream>>>(P(std::forward<A>(arguments))...);
    error = cudaGetLastError();
  }
  if (error != cudaSuccess) throw std::runtime_error(std::string("CUDA launch: ") + cudaGetErrorString(error));
}

#else

#define LLMSRV_DYNAMIC_SHARED(name) unsigned char* name = ::llmsrv::emulation::context->shared
#define LLMSRV_SHARED(type, name, count)     \
  static const char name##_key = 0;          \
  auto& name = *static_cast<type(*)[count]>( \
      ::llmsrv::emulation::static_shared(&name##_key, sizeof(type[count]), alignof(type)))
#define LLMSRV_UNROLL
#define LLMSRV_UNROLL_BY_4

inline void copy_async_16(void* to, const void* from, bool wanted, LLMSRV_HERE) {
  emulation::copy_async(to, from, 16, wanted, location);
}
inline void copy_async_4(void* to, const void* from, bool wanted, LLMSRV_HERE) {
  emulation::copy_async(to, from, 4, wanted, location);
}
inline void commit_copies() { emulation::commit_copies(); }
template <int kGroups>
void wait_for_copies(LLMSRV_HERE) {
  emulation::wait_for_copies(kGroups, location);
}

template <bool kTransposed>
void load_matrices(std::uint32_t (&registers)[4], const void* row, LLMSRV_HERE) {
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) emulation::fail("a matrix row is not aligned", location);
  unsigned arrived;
  const emulation::Slot* slots =
      emulation::exchange(kAllLanes, emulation::Collective::kLoadMatrix, &row, sizeof row, &arrived, location);
  const int lane = static_cast<int>(emulation::context->current->lane);
  const int group = lane / 4;
  const int pair = lane % 4 * 2;
  for (int matrix = 0; matrix < 4; ++matrix) {
    const auto at = [&](int y, int x) {
      const std::uint16_t* values;
      std::memcpy(&values, slots[matrix * 8 + y].bytes, sizeof values);
      return static_cast<std::uint32_t>(values[x]);
    };
    registers[matrix] =
        kTransposed ? at(pair, group) | at(pair + 1, group) << 16 : at(group, pair) | at(group, pair + 1) << 16;
  }
}

inline float half_or_bf16(std::uint16_t bits, Half) { return f16_to_float(bits); }
inline float half_or_bf16(std::uint16_t bits, Bf16) { return bf16_to_float(bits); }

template <typename T = Bf16>
void multiply_add(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], LLMSRV_HERE) {
  const std::uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  unsigned arrived;
  const emulation::Slot* slots =
      emulation::exchange(kAllLanes, emulation::Collective::kMatrixMultiply, mine, sizeof mine, &arrived, location);
  if (arrived != kAllLanes) emulation::fail("a matrix multiplication lacks lanes", location);
  const auto element = [&](int lane, int index, int half) {
    std::uint32_t word;
    std::memcpy(&word, slots[lane].bytes + 4 * index, sizeof word);
    return half_or_bf16(static_cast<std::uint16_t>(word >> 16 * half), T{});
  };
  const int lane = static_cast<int>(emulation::context->current->lane);
  for (int i = 0; i < 4; ++i) {
    const int column = lane % 4 * 2 + i % 2;
    float sum = 0.0f;
    for (int k = 0; k < 16; ++k) {
      const int pair = k % 8 / 2;
      const int upper = k / 8;
      sum += element(lane / 4 * 4 + pair, upper * 2 + i / 2, k % 2) * element(column * 4 + pair, 4 + upper, k % 2);
    }
    d[i] += sum;
  }
}

inline float exp2_fast(float x) { return std::exp2(x); }
template <typename T, typename F>
std::uint32_t each_of_pair(std::uint32_t a, std::uint32_t b, const F& f) {
  std::uint32_t result = 0;
  for (int half = 0; half < 32; half += 16) {
    const auto value = [&](std::uint32_t pair) { return half_or_bf16(static_cast<std::uint16_t>(pair >> half), T{}); };
    const float each = f(value(a), value(b));
    const std::uint16_t bits = std::is_same_v<T, Bf16> ? float_to_bf16(each) : float_to_f16(each);
    result |= static_cast<std::uint32_t>(bits) << half;
  }
  return result;
}
template <typename T = Bf16>
std::uint32_t subtract_pairs(std::uint32_t a, std::uint32_t b) {
  return each_of_pair<T>(a, b, [](float x, float y) { return x - y; });
}
template <typename T>
std::uint32_t multiply_pairs(std::uint32_t a, std::uint32_t b) {
  return each_of_pair<T>(a, b, [](float x, float y) { return x * y; });
}
inline Half half_of_bits(std::uint16_t bits) { return {bits}; }
inline std::uint16_t bits_of(Bf16 value) { return value.bits; }
inline std::uint16_t bits_of(Half value) { return value.bits; }

template <typename... P, typename... A>
void launch(void (*kernel)(P...), const Grid& grid, Stream, A&&... arguments) {
  emulation::launch(kernel, {grid.blocks, grid.threads, grid.shared_bytes}, std::forward<A>(arguments)...);
}

#endif

__host__ __device__ __forceinline__ float to_float(float value) { return value; }
__host__ __device__ __forceinline__ float to_float(Bf16 value) { return __bfloat162float(value); }
__host__ __device__ __forceinline__ float to_float(Half value) { return __half2float(value); }
template <typename T>
__host__ __device__ __forceinline__ T from_float(float value);
template <>
__host__ __device__ __forceinline__ float from_float<float>(float value) {
  return value;
}
template <>
__host__ __device__ __forceinline__ Bf16 from_float<Bf16>(float value) {
  return __float2bfloat16(value);
}

template <>
__host__ __device__ __forceinline__ Half from_float<Half>(float value) {
  return __float2half(value);
}

// Two of Bf16 or Half in one register, the first in the low half.
template <typename T = Bf16>
__device__ __forceinline__ std::uint32_t pack_pair(float low, float high) {
  return bits_of(from_float<T>(low)) | static_cast<std::uint32_t>(bits_of(from_float<T>(high))) << 16;
}

// 16 bytes of elements: what one load or store moves.
template <typename T>
struct alignas(16) Chunk {
  static constexpr int kCount = 16 / sizeof(T);
  T values[kCount];
};
template <typename T>
__device__ __forceinline__ Chunk<T> load_chunk(const T* from) {
  Chunk<T> chunk;
  *reinterpret_cast<uint4*>(chunk.values) = *reinterpret_cast<const uint4*>(from);
  return chunk;
}
template <typename T>
__device__ __forceinline__ void store_chunk(T* to, const Chunk<T>& chunk) {
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(chunk.values);
}

// As many elements as a chunk of another type has: what one store of 16 or 8 bytes moves.
template <typename T, int kElements>
struct alignas(kElements * sizeof(T)) Pack {
  static constexpr int kCount = kElements;
  T values[kElements];
};
template <typename T, int kElements>
__device__ __forceinline__ void store_pack(T* to, const Pack<T, kElements>& pack) {
  static_assert(sizeof(pack) == 16 || sizeof(pack) == 8);
  if constexpr (sizeof(pack) == 16) {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(pack.values);
  } else {
    *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(pack.values);
  }
}

// Where row `row` of a matrix starts.
template <typename T>
__host__ __device__ __forceinline__ T* row_at(T* matrix, int row, int stride) {
  return matrix + static_cast<std::size_t>(row) * static_cast<std::size_t>(stride);
}

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace llmsrv::cuda
