#include "cuda/launch/attention-inl.h"

namespace llmsrv::cuda {

LLMSRV_ATTENTION(float, float);
LLMSRV_ATTENTION(float, Bf16);
LLMSRV_ATTENTION(float, Half);
LLMSRV_ATTENTION(float, Fp8);
LLMSRV_ATTENTION(float, Int8);

}  // namespace llmsrv::cuda
