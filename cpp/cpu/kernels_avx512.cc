#define LLMSRV_ISA avx512
#include "cpp/cpu/vec_avx2.h"
#include "cpp/cpu/vec_avx512.h"

namespace llmsrv::cpu::LLMSRV_ISA {
namespace {
using Vec = Vec16;
using NarrowVec = Vec8;  // for blocks of 8 tokens
constexpr int kRegisters = 32;
constexpr int kTokenTile = 12;
constexpr int kQueryTile = 12;
}  // namespace
}  // namespace llmsrv::cpu::LLMSRV_ISA

#include "cpp/cpu/kernels-inl.h"
