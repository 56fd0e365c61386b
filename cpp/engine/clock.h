// The monotonic clock, in seconds.
#pragma once

#include <chrono>

namespace llmsrv {

inline double monotonic_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace llmsrv
