// The CPU as a Backend: float activations, packed weights, one kernel table chosen at start.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cpp/base/thread_pool.h"
#include "cpp/ops/backend.h"

namespace llmsrv {

// Instruction sets this machine can run, best first: of "avx512", "avx2", "scalar".
std::vector<std::string> available_cpu_isas();

// `isa`: a name from available_cpu_isas(), or empty for the best one. An impossible or unknown choice throws
// std::invalid_argument that names it and what is available. `pool` must outlive the backend.
std::unique_ptr<Backend> make_cpu_backend(ThreadPool& pool, const std::string& isa);

}  // namespace llmsrv
