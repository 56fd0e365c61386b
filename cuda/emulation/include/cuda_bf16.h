// The part of <cuda_bf16.h> that the kernels use, for host compilers.
#pragma once

#include <cstdint>

#include "cpp/base/float16.h"

struct alignas(2) __nv_bfloat16 {
  std::uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 value) { return llmsrv::bf16_to_float(value.bits); }
inline __nv_bfloat16 __float2bfloat16(float value) { return {llmsrv::float_to_bf16(value)}; }
