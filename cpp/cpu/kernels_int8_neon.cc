#define LLMSRV_ISA int8_neon
#include "cpp/cpu/int8_vec_neon.h"

namespace llmsrv::cpu::LLMSRV_ISA {
namespace {
using Vec = Int8VecNeon;
constexpr int kTokenTile = 8;
constexpr int kMostChains = 8;
constexpr int kChains = 4;
}  // namespace
}  // namespace llmsrv::cpu::LLMSRV_ISA

#include "cpp/cpu/kernels_int8-inl.h"
