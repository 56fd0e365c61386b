// What a call of the plug-in's table failed with. Nothing that the table calls may throw beyond it.
#pragma once

#include <string>

#include "cpp/ops/plugin.h"

namespace llmsrv::cuda {

// Keeps the text for last_error() of this thread.
device::Code failed(device::Code code, const std::string& text);
const char* last_error();

}  // namespace llmsrv::cuda
