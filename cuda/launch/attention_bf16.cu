#include "cuda/launch/attention-inl.h"

namespace llmsrv::cuda {

LLMSRV_ATTENTION(Bf16, Bf16);
LLMSRV_ATTENTION(Bf16, Fp8);
LLMSRV_ATTENTION(Bf16, Int8);

}  // namespace llmsrv::cuda
