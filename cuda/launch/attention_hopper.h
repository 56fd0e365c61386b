// Launches for Hopper (capability 9.0). Elsewhere they do nothing or fail.
#pragma once

#include "cuda/launch/attention.h"

namespace llmsrv::cuda {

// Adds to *unequal, in device memory, how many of `blocks` times 6144 sums differ between the products of a warp group
// and those of a warp.
void compare_products(int blocks, int* unequal, Stream stream);

// Whether there is a kernel: for head sizes 64 and 128 and blocks of at least 8 tokens.
bool has_hopper_prefill(int head_dim, int block_size);
// The same as attend_prefill(), where there is a kernel; else throws std::invalid_argument. cache_blocks: how many the
// cache has.
void attend_prefill_hopper(const AttentionParams<Bf16, Bf16>& params, int cache_blocks, const AttentionGrid& grid,
                           Stream stream);

}  // namespace llmsrv::cuda
