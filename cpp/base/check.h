// Invariants that stay on in release builds. Broken input is never checked with these: it is a Status.
#pragma once

#include <stdexcept>
#include <string>

namespace llmsrv {

// Our own bug. Caught only in Engine::run, which fails all live requests and stops the engine.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// The device failed. Handled as InternalError is.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void check_failed(const char* condition, const char* file, int line) {
  throw InternalError(std::string("check failed: ") + condition + " at " + file + ":" + std::to_string(line));
}

}  // namespace llmsrv

#define LLMSRV_CHECK(condition) \
  (static_cast<bool>(condition) ? static_cast<void>(0) : ::llmsrv::check_failed(#condition, __FILE__, __LINE__))
