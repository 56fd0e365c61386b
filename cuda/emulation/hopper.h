// What Hopper's threads start and then wait for: barriers in shared memory that count arrivals and bytes, copies of
// boxes of a matrix by the tensor memory accelerator, products of four warps from shared memory.
//
// Everything is as late as it may be, or as early: a copy lands when every thread waits (kForward), at once (kReverse)
// or one or the other (kShuffled), and until then its place holds NaN; a product reads its operands and writes its sums
// when its group is waited for, or at once, and until then its sums are NaN. Stores that copies and products shall see
// are there after fence_async_proxy() at the earliest. So a wait or a fence too few shows in the result, and misuse
// that no result would show is an Error. Addresses, descriptors and the 128-byte swizzle are read bit by bit as the PTX
// manual lays them out ("Matrix Descriptor Format", "Canonical Layouts"), never by what the kernels' wrappers mean by
// them.
//
// Not modelled: other swizzles, clusters, registers handed from one warp group to another.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/emulation/emulator.h"

namespace llmsrv::emulation {

// The address of dynamic shared memory as instructions take it. Its start is a multiple of 128 and of nothing more.
std::uint32_t shared_address(const void* memory, const Location& location);

// A barrier: eight bytes of shared memory. A phase ends when all arrivals have come and all expected bytes have landed.
void init_barrier(const std::uint64_t* barrier, unsigned arrivals, const Location& location);
// Makes the barriers that this thread has initialized known to copies.
void show_barriers(const Location& location);
void arrive(const std::uint64_t* barrier, unsigned expected_bytes, const Location& location);
// Waits for the end of the phase of this parity.
void wait_for_phase(const std::uint64_t* barrier, unsigned parity, const Location& location);

// A matrix of 16-bit elements in global memory, and the box that one copy takes of it.
struct TileMap {
  const unsigned char* data = nullptr;
  std::uint64_t rows = 0;
  std::uint64_t cols = 0;
  std::uint64_t row_bytes = 0;
  std::uint32_t box_rows = 0;
  std::uint32_t box_cols = 0;
};
// Throws Error where the driver would refuse the map.
TileMap make_tile_map(const TileMap& wanted);
// Copies the box from (col, row) on, swizzled by 128 bytes; elements outside of the matrix become zeros.
void copy_box(void* to, const TileMap& map, int col, int row, const std::uint64_t* barrier, const Location& location);

// A store that copies and products see after the fence.
void store_for_products(void* to, const uint4& value, const Location& location);
void fence_async_proxy(const Location& location);

// d [64, cols] += a b, or d = a b without `add`: a [64, 16] in the registers of four warps as in m16n8k16, b [16, cols]
// in shared memory as the descriptor says, with its columns side by side when `across`.
struct Product {
  float* d = nullptr;  // cols / 2 of this thread
  const std::uint32_t* a = nullptr;
  std::uint64_t b = 0;
  int cols = 0;
  bool across = false;
  bool add = true;
};
void fence_products(const Location& location);
void start_product(const Product& product, const Location& location);
void commit_products();
void wait_for_products(unsigned groups_left, const Location& location);

// Called by the emulator.
void hopper_block_begins(unsigned threads);
void hopper_block_ends();
// Lands a copy that is under way, now that no thread can go on; false when there is none.
bool land_late_copy();

}  // namespace llmsrv::emulation
