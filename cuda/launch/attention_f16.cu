#include "cuda/launch/attention-inl.h"

namespace llmsrv::cuda {

LLMSRV_ATTENTION(Half, Half);
LLMSRV_ATTENTION(Half, Fp8);

}  // namespace llmsrv::cuda
