#include "cpp/engine/inbox.h"

#include <chrono>
#include <utility>

#include "cpp/engine/clock.h"

namespace llmsrv {

std::variant<RequestKey, Status> Inbox::submit(Request request) {
  const std::lock_guard lock(mutex_);
  if (closed_) return *closed_;
  if (live_.count(request.id) != 0) {
    return Status(StatusCode::kAlreadyExists, "request_id '" + request.id + "' is in flight");
  }
  if (queued_requests_ >= limits_.queued_requests) {
    return Status(StatusCode::kResourceExhausted,
                  "the queue is full: " + std::to_string(queued_requests_) + " requests wait (max_queued_requests)");
  }
  const auto tokens = static_cast<std::int64_t>(request.prompt.size());
  // One prompt may always wait alone, however long.
  if (queued_requests_ > 0 && queued_tokens_ + tokens > limits_.queued_tokens) {
    return Status(StatusCode::kResourceExhausted,
                  "the queue is full: " + std::to_string(queued_tokens_) + " prompt tokens wait (max_queued_tokens)");
  }
  const RequestKey key = next_key_++;
  live_.emplace(request.id, key);
  is_ending_.emplace(key, false);
  ++queued_requests_;
  queued_tokens_ += tokens;
  batch_.submissions.push_back({key, std::move(request), monotonic_s()});
  work_.notify_one();
  return key;
}

bool Inbox::end(RequestKey key, FinishReason reason) {
  const std::lock_guard lock(mutex_);
  const auto found = is_ending_.find(key);
  if (found == is_ending_.end()) return false;
  // A client that ends a request twice must not grow the inbox.
  if (!found->second) batch_.endings.push_back({key, reason});
  found->second = true;
  work_.notify_one();
  return true;
}

std::future<int> Inbox::clear_prefix_cache() {
  const std::lock_guard lock(mutex_);
  std::promise<int> answer;
  std::future<int> result = answer.get_future();
  if (closed_) {
    answer.set_value(0);
  } else {
    batch_.cache_clears.push_back(std::move(answer));
    work_.notify_one();
  }
  return result;
}

std::optional<RequestKey> Inbox::find(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(id);
  return found == live_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::pair<std::string, RequestKey>> Inbox::in_flight() const {
  const std::lock_guard lock(mutex_);
  return {live_.begin(), live_.end()};
}

int Inbox::queued() const {
  const std::lock_guard lock(mutex_);
  return queued_requests_;
}

void Inbox::close(Status reason) {
  const std::lock_guard lock(mutex_);
  if (!closed_) closed_ = std::move(reason);
  work_.notify_one();
}

void Inbox::drain(InboxBatch& batch) {
  batch.submissions.clear();
  batch.endings.clear();
  batch.cache_clears.clear();
  const std::lock_guard lock(mutex_);
  std::swap(batch, batch_);
}

bool Inbox::wait(std::optional<double> timeout_s) {
  std::unique_lock lock(mutex_);
  const auto has_work = [&] { return this->has_work(); };
  if (timeout_s) return work_.wait_for(lock, std::chrono::duration<double>(*timeout_s), has_work);
  work_.wait(lock, has_work);
  return true;
}

void Inbox::leave_queue(int prompt_tokens) {
  const std::lock_guard lock(mutex_);
  --queued_requests_;
  queued_tokens_ -= prompt_tokens;
}

void Inbox::forget(const std::string& id, RequestKey key) {
  const std::lock_guard lock(mutex_);
  live_.erase(id);
  is_ending_.erase(key);
}

}  // namespace llmsrv
