#define LLMSRV_ISA avx2
#include "cpp/cpu/vec_avx2.h"

namespace llmsrv::cpu::LLMSRV_ISA {
namespace {
using Vec = Vec8;
using NarrowVec = Vec8;
constexpr int kRegisters = 16;
constexpr int kTokenTile = 4;
constexpr int kQueryTile = 4;
}  // namespace
}  // namespace llmsrv::cpu::LLMSRV_ISA

#include "cpp/cpu/kernels-inl.h"
