#include "cpp/cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <cstddef>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "cpp/cpu/cpu_backend.h"

namespace llmsrv {
namespace {

#if defined(__x86_64__)
constexpr unsigned kAmxTileBit = 24;  // of CPUID leaf 7's EDX, as the next one
constexpr unsigned kAmxBf16Bit = 22;
constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
constexpr long kTileData = 18;               // XFEATURE_XTILEDATA

// Tiles are a state of 8 KiB, which a process has to ask the kernel for.
bool may_use_amx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx >> kAmxTileBit & 1u) == 0 || (edx >> kAmxBf16Bit & 1u) == 0) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

cpu::KernelTable avx512_table_with(cpu::KernelTable::Linear* linear_bf16, std::size_t (*linear_scratch_bytes)(int)) {
  cpu::KernelTable table = cpu::avx512::table;
  table.linear_bf16 = linear_bf16;
  table.linear_scratch_bytes = linear_scratch_bytes;
  return table;
}

const cpu::KernelTable& amx_table() {
  static const cpu::KernelTable table = avx512_table_with(cpu::amx::linear_bf16, cpu::amx::linear_scratch_bytes);
  return table;
}

const cpu::KernelTable& avx512_bf16_table() {
  static const cpu::KernelTable table = [] {
    cpu::KernelTable made = avx512_table_with(cpu::avx512_bf16::linear_bf16, cpu::avx512_bf16::linear_scratch_bytes);
    made.attention_bf16 = cpu::attention_avx512_bf16::attention_bf16;
    return made;
  }();
  return table;
}
#endif

// Best first.
std::vector<CpuIsa> runnable_isas() {
  std::vector<CpuIsa> isas;
#if defined(__x86_64__)
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  // The first AVX-512 processors have no byte dot products: packed integers run on AVX2 there.
  const bool has_byte_dots = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("gfni");
  const cpu::Int8Table* int8 = has_avx512 && has_byte_dots ? &cpu::int8_avx512::table : &cpu::int8_avx2::table;
  // AMD's cores do twice as many multiply-adds with bf16 dot products as with FMA. Intel's do no more, and FMA is
  // exact.
  const bool has_bf16_dots = has_avx2 && has_avx512 && __builtin_cpu_supports("avx512bf16");
  const bool dots_are_faster = __builtin_cpu_is("amd");
  if (has_avx2 && has_avx512 && may_use_amx()) isas.push_back({"amx", &amx_table(), int8});
  if (has_bf16_dots && dots_are_faster) isas.push_back({"avx512_bf16", &avx512_bf16_table(), int8});
  if (has_avx2 && has_avx512) isas.push_back({"avx512", &cpu::avx512::table, int8});
  if (has_bf16_dots && !dots_are_faster) isas.push_back({"avx512_bf16", &avx512_bf16_table(), int8});
  if (has_avx2) isas.push_back({"avx2", &cpu::avx2::table, &cpu::int8_avx2::table});
#endif
#if defined(__aarch64__)
  // Floats stay plain C, which has vectors of four lanes on any such machine.
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0) isas.push_back({"neon", &cpu::scalar::table, &cpu::int8_neon::table});
#endif
  isas.push_back({"scalar", &cpu::scalar::table, &cpu::int8_scalar::table});
  return isas;
}

}  // namespace

std::vector<std::string> available_cpu_isas() {
  std::vector<std::string> names;
  for (const CpuIsa& isa : runnable_isas()) names.push_back(isa.name);
  return names;
}

CpuIsa choose_cpu_isa(const std::string& isa) {
  std::string available;
  for (const CpuIsa& candidate : runnable_isas()) {
    if (isa.empty() || candidate.name == isa) return candidate;
    available += (available.empty() ? "" : ", ") + candidate.name;
  }
  throw std::invalid_argument("instruction set '" + isa + "' (LLMSRV_ISA): this machine can run " + available);
}

std::string cpu_isa_from_environment() {
  const char* value = std::getenv("LLMSRV_ISA");
  return value == nullptr ? "" : value;
}

}  // namespace llmsrv
