// The one gate for request data (promise P4): what passes here cannot make a step fail.
#pragma once

#include <vector>

#include "cpp/base/status.h"
#include "cpp/engine/config.h"
#include "cpp/engine/request.h"
#include "cpp/model/spec.h"

namespace llmsrv {

// Every violation, with its field path in the proto. Empty means valid.
std::vector<Violation> validate(const Request& request, const ModelSpec& spec, const EngineConfig& config);

}  // namespace llmsrv
