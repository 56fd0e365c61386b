// Where outside events wait until the engine thread applies them: submissions and early endings. Bounded (promise P6).
// Also knows which requests are in flight, so that ids are unique and ending an ended request costs nothing.
// Thread rule: every method may be called from any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "cpp/base/status.h"
#include "cpp/base/types.h"
#include "cpp/engine/request.h"
#include "cpp/sched/stop.h"

namespace llmsrv {

struct Submission {
  RequestKey key = 0;
  Request request;
  double time_s = 0.0;  // monotonic
};

// A request to be ended early, and what that counts as: kAborted, or kStop when its text reached a stop string.
struct Ending {
  RequestKey key = 0;
  FinishReason reason = FinishReason::kAborted;
};

struct InboxBatch {
  std::vector<Submission> submissions;
  std::vector<Ending> endings;                  // of requests in flight; those of this batch included
  std::vector<std::promise<int>> cache_clears;  // each waits for the number of blocks that became free
};

class Inbox {
 public:
  struct Limits {
    int queued_requests = 0;
    std::int64_t queued_tokens = 0;
  };
  explicit Inbox(const Limits& limits) : limits_(limits) {}

  // Accepts a request or refuses it now: ALREADY_EXISTS, RESOURCE_EXHAUSTED, or why the inbox is closed.
  // REQUIRES: the request is valid.
  std::variant<RequestKey, Status> submit(Request request);

  // Marks a request in flight to be ended; the first reason stays. False when it is not in flight.
  bool end(RequestKey key, FinishReason reason);
  // Asks for an empty prefix cache. The answer is 0 when the inbox is closed.
  std::future<int> clear_prefix_cache();
  std::optional<RequestKey> find(const std::string& id) const;
  std::vector<std::pair<std::string, RequestKey>> in_flight() const;
  // Requests that were accepted and have not left the queue.
  int queued() const;

  // Refuses every later submission with `reason`, and wakes the engine thread. The first reason stays.
  void close(Status reason);

  // Swaps everything that waits into `batch`, whose contents are dropped.
  void drain(InboxBatch& batch);
  // Returns when there is something to drain or the inbox is closed; true then. False after `timeout_s` without.
  bool wait(std::optional<double> timeout_s = std::nullopt);

  // A request left the queue: it runs, or ended before it did.
  void leave_queue(int prompt_tokens);
  // A request had its final output; its id is free again.
  void forget(const std::string& id, RequestKey key);

 private:
  const Limits limits_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  // Guarded by mutex_:
  bool has_work() const {
    return closed_ || !batch_.submissions.empty() || !batch_.endings.empty() || !batch_.cache_clears.empty();
  }
  InboxBatch batch_;
  std::unordered_map<std::string, RequestKey> live_;
  std::unordered_map<RequestKey, bool> is_ending_;  // of those in flight
  int queued_requests_ = 0;
  std::int64_t queued_tokens_ = 0;
  RequestKey next_key_ = 1;
  std::optional<Status> closed_;
};

}  // namespace llmsrv
