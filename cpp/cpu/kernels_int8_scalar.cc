#define LLMSRV_ISA int8_scalar
#include "cpp/cpu/int8_vec_scalar.h"

namespace llmsrv::cpu::LLMSRV_ISA {
namespace {
using Vec = Int8Vec4;
constexpr int kTokenTile = 2;
constexpr int kMostChains = 2;
constexpr int kChains = 2;
}  // namespace
}  // namespace llmsrv::cpu::LLMSRV_ISA

#include "cpp/cpu/kernels_int8-inl.h"
