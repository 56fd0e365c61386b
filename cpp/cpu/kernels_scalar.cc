#define LLMSRV_ISA scalar
#include "cpp/cpu/vec_scalar.h"

namespace llmsrv::cpu::LLMSRV_ISA {
namespace {
using Vec = Vec4;
using NarrowVec = Vec4;
constexpr int kRegisters = 16;
constexpr int kTokenTile = 3;
constexpr int kQueryTile = 4;
}  // namespace
}  // namespace llmsrv::cpu::LLMSRV_ISA

#include "cpp/cpu/kernels-inl.h"
