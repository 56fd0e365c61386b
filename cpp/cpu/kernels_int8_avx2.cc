#define LLMSRV_ISA int8_avx2
#include "cpp/cpu/int8_vec_avx2.h"

namespace llmsrv::cpu::LLMSRV_ISA {
namespace {
using Vec = Int8Vec8;
constexpr int kTokenTile = 4;
constexpr int kMostChains = 4;
constexpr int kChains = 4;
}  // namespace
}  // namespace llmsrv::cpu::LLMSRV_ISA

#include "cpp/cpu/kernels_int8-inl.h"
