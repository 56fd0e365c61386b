// The one gate for request data (promise P4): what passes here cannot make a step fail.
#pragma once

#include <optional>
#include <vector>

#include "cpp/base/status.h"
#include "cpp/engine/config.h"
#include "cpp/engine/request.h"
#include "cpp/model/spec.h"

namespace llmsrv {

// Every violation, with its field path in the proto. Empty means valid.
std::vector<Violation> validate(const Request& request, const ModelSpec& spec, const EngineConfig& config,
                                int kv_blocks);

// FAILED_PRECONDITION for a prompt that the model could read, but that all `kv_blocks` of this server cannot hold. It
// breaks no rule of the API, so validate() leaves it out. Nothing when it fits.
std::optional<Status> never_fits(const Request& request, const ModelSpec& spec, const EngineConfig& config,
                                 int kv_blocks);

}  // namespace llmsrv
