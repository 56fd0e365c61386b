// Launches of kernels that do nothing but use one instruction or function of CUDA's, for tests that hold what it does
// against what the kernels take it to do: on a device, that is where the emulator's reading of the manual is proven.
// Each returns at once; errors of the launch throw.
#pragma once

#include "cuda/kernels/device.cuh"

namespace llmsrv::cuda {

enum class Operands { kBf16, kHalf };

constexpr int kTriedCopies = 128;            // chunks
constexpr int kTriedRows = 32;               // of 8 elements of 16 bits
constexpr int kTriedWarpResults = 10;        // see try_warp_functions
constexpr int kTriedSharedBytes = 96 << 10;  // more than a kernel has without asking, and what every target can give

// Copies kTriedCopies chunks into shared memory in two groups; every thread writes a chunk that another has copied.
// out is in backwards, each half by itself; zeros where `wanted` is 0. Chunks are of 16 bytes, or of 4.
void try_copy_async(const uint4* in, const std::int32_t* wanted, uint4* out, Stream stream);
void try_copy_async(const std::uint32_t* in, const std::int32_t* wanted, std::uint32_t* out, Stream stream);

// in: kTriedRows rows in shared memory; lane i gives the address of row rows[i]. out: [lane][4].
void try_load_matrices(bool transposed, const uint4* in, const std::int32_t* rows, std::uint32_t* out, Stream stream);

// d = c + a b, tile by tile, of either type of operands: a [tiles, 16, depth], b [tiles, 8, depth] (columns as rows), c
// and d [tiles, 16, 8]. REQUIRES: depth is a multiple of 16
struct TriedProducts {
  Operands operands = Operands::kBf16;
  const std::uint16_t* a = nullptr;
  const std::uint16_t* b = nullptr;
  const float* c = nullptr;
  float* d = nullptr;
  int tiles = 0;
  int depth = 0;
};
void try_multiply_add(const TriedProducts& products, Stream stream);

// One warp. out: [kTriedWarpResults][lane]: exchanged with the lanes 1, 2, 4, 8 and 16 away, taken from lane
// `value % 32`, from 1 and from 7 lanes below, votes for multiples of 3, and the index of the lowest bit of the value.
void try_warp_functions(const std::int32_t* in, std::int32_t* out, Stream stream);

// The sum of a warp and of a block, in every thread.
struct TriedSums {
  const float* in = nullptr;  // [blocks, threads]
  float* of_warp = nullptr;   // the same
  float* of_block = nullptr;
  int blocks = 0;
  int threads = 0;  // of whole warps
};
void try_sums(const TriedSums& sums, Stream stream);

// Every block writes its part of `in` backwards, through kTriedSharedBytes of shared memory.
void try_shared_memory(const std::uint32_t* in, std::uint32_t* out, int blocks, Stream stream);

// Each of `count` threads adds its value to out[0] and raises out[1] to it.
void try_atomics(const std::int32_t* in, std::int32_t* out, int count, Stream stream);

// Element by element.
void try_exp2(const float* in, float* out, int count, Stream stream);
void try_to_bf16(const float* in, std::uint16_t* out, int count, Stream stream);
void try_to_half(const float* in, std::uint16_t* out, int count, Stream stream);
void try_half_to_float(const std::uint16_t* in, float* out, int count, Stream stream);
// The first of a pair becomes the lower half of a register.
void try_pack_pair(const float2* in, std::uint32_t* out, int count, Operands operands, Stream stream);
void try_subtract_pairs(const uint2* in, std::uint32_t* out, int count, Operands operands, Stream stream);
void try_multiply_pairs(const uint2* in, std::uint32_t* out, int count, Operands operands, Stream stream);
// Bytes of x and y, as z says.
void try_byte_perm(const uint4* in, std::uint32_t* out, int count, Stream stream);

}  // namespace llmsrv::cuda
