// The part of <cuda_fp16.h> that the kernels use, for host compilers.
#pragma once

#include <cstdint>

#include "cpp/base/float16.h"

struct alignas(2) __half {
  std::uint16_t bits;
};
inline float __half2float(__half value) { return llmsrv::f16_to_float(value.bits); }
inline __half __float2half(float value) { return {llmsrv::float_to_f16(value)}; }
