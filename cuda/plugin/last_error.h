// What a call of the plug-in's table failed with. Nothing that the table calls may throw beyond it.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

#include "cpp/ops/plugin.h"

namespace llmsrv::cuda {

// Keeps the text for last_error() of this thread.
device::Code failed(device::Code code, const std::string& text);
const char* last_error();

// Calls f. What it throws is how the call failed: std::invalid_argument is kUnsupported.
template <typename F>
device::Code caught(const F& f) {
  try {
    f();
    return device::Code::kOk;
  } catch (const std::invalid_argument& error) {
    return failed(device::Code::kUnsupported, error.what());
  } catch (const std::exception& error) {
    return failed(device::Code::kFailed, error.what());
  }
}

}  // namespace llmsrv::cuda
