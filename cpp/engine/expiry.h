// The moments at which requests in flight are to be looked at. Holds only those of requests in flight: bounded as they
// are (promise P6). Thread rule: engine thread only.
#pragma once

#include <optional>
#include <set>

#include "cpp/base/types.h"

namespace llmsrv {

enum class ExpiryKind {
  kQueueTimeout,  // it has waited as long as it may
  kLatestStart,   // from here on its deadline may be out of reach
  kDeadline,      // nobody reads the answer any more
  kTimeLimit,     // what is done is the answer
};

struct Expiry {
  double time_s = 0.0;  // monotonic
  RequestKey request = 0;
  ExpiryKind kind = ExpiryKind::kDeadline;

  auto operator<=>(const Expiry&) const = default;
};

class ExpiryQueue {
 public:
  void add(const Expiry& expiry) { queue_.insert(expiry); }
  void remove(const Expiry& expiry) { queue_.erase(expiry); }

  // Takes out the earliest one that is due.
  std::optional<Expiry> take_due(double now_s) {
    if (queue_.empty() || queue_.begin()->time_s > now_s) return std::nullopt;
    return queue_.extract(queue_.begin()).value();
  }

 private:
  std::set<Expiry> queue_;  // earliest first
};

}  // namespace llmsrv
