// Chooses the device. The only place that names one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cpp/base/thread_pool.h"
#include "cpp/ops/backend.h"

namespace llmsrv {

// `isa` forces a CPU kernel table; empty lets the environment (LLMSRV_ISA), then the machine decide.
// Throws std::invalid_argument for an impossible choice. `pool` must outlive the backend.
std::unique_ptr<Backend> make_backend(ThreadPool& pool, const std::string& isa);

// CPU kernel tables that this machine can run, best first.
std::vector<std::string> available_isas();

}  // namespace llmsrv
