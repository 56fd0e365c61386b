// Launches for Hopper (capability 9.0), and when prompts use them. Elsewhere they do nothing or fail.
#pragma once

#include "cuda/launch/attention.h"

namespace llmsrv::cuda {

// Adds to *unequal, in device memory, how many of `blocks` times 6144 sums differ between the products of a warp group
// and those of a warp.
void compare_products(int blocks, int* unequal, Stream stream);

// What decides which kernel prompts use. It is the same for every step on a device, so that a row's bits never depend
// on what else a step holds.
struct PrefillChoice {
  int capability = 0;           // 10 * major + minor
  bool products_agree = false;  // compare_products() found no difference on this device
  bool deterministic = true;    // promise P3 is kept
};
// Whether attend_prefill_hopper() takes the place of attend_prefill(). Decoding stays with attend_segments(): without
// `products_agree` a token decoded and the same token recomputed could differ, which P3 forbids.
bool uses_hopper_prefill(const PrefillChoice& choice, int head_dim, int block_size);

// The same as attend_prefill(), for head sizes 64 and 128 and blocks of at least 8 tokens; throws std::invalid_argument
// for others. cache_blocks: how many the cache has.
void attend_prefill_hopper(const AttentionParams<Bf16, Bf16>& params, int cache_blocks, const AttentionGrid& grid,
                           Stream stream);

}  // namespace llmsrv::cuda
