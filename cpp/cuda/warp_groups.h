// Whether prompts use a Hopper's products of warp groups (wgmma), which are the only way to its full speed. Decoding
// stays with products of warps, and a preempted request computes again, in a chunk, what it had decoded: promise P3
// needs the same bits from both, and nothing but the device can tell.
#pragma once

#include "cpp/cuda/device.h"

namespace llmsrv {

// On a Hopper with promise P3: whether drawn numbers, multiplied both ways now, agree in every bit. Without the
// promise: yes. On other devices, which lack them: no. The choice is the device's, never a step's. Waits for the
// stream.
bool uses_warp_groups(const Device& device, const DeviceStream& stream, bool deterministic);

}  // namespace llmsrv
