#define LLMSRV_ISA int8_avx512
#include "cpp/cpu/int8_vec_avx512.h"

namespace llmsrv::cpu::LLMSRV_ISA {
namespace {
using Vec = Int8Vec16;
constexpr int kTokenTile = 16;
constexpr int kMostChains = 8;  // integer accumulators at a time
constexpr int kChains = 6;      // the same beside more than 8 tokens' float accumulators
}  // namespace
}  // namespace llmsrv::cpu::LLMSRV_ISA

#include "cpp/cpu/kernels_int8-inl.h"
