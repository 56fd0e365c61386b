#include "cpp/cpu/isa.h"

#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "cpp/cpu/cpu_backend.h"

namespace llmsrv {
namespace {

// Best first.
std::vector<CpuIsa> runnable_isas() {
  std::vector<CpuIsa> isas;
#if defined(__x86_64__)
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (has_avx2 && has_avx512) isas.push_back({"avx512", &cpu::avx512::table});
  if (has_avx2) isas.push_back({"avx2", &cpu::avx2::table});
#endif
  isas.push_back({"scalar", &cpu::scalar::table});
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
