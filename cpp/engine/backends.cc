#include "cpp/engine/backends.h"

#include "cpp/cpu/cpu_backend.h"
#include "cpp/cpu/isa.h"

namespace llmsrv {

std::unique_ptr<Backend> make_backend(ThreadPool& pool, const std::string& isa) {
  return make_cpu_backend(pool, isa.empty() ? cpu_isa_from_environment() : isa);
}

std::vector<std::string> available_isas() { return available_cpu_isas(); }

}  // namespace llmsrv
