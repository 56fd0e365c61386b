#include "cpp/engine/outbox.h"

#include <iterator>
#include <utility>

namespace llmsrv {

void Outbox::push(std::vector<Output>& outputs) {
  if (outputs.empty()) return;
  std::unique_lock lock(mutex_);
  emptied_.wait(lock, [&] { return has_room(); });
  append(outputs);
}

void Outbox::offer(std::vector<Output>& outputs) {
  if (outputs.empty()) return;
  const std::lock_guard lock(mutex_);
  if (has_room()) append(outputs);
}

void Outbox::append(std::vector<Output>& outputs) {
  pending_.insert(pending_.end(), std::make_move_iterator(outputs.begin()), std::make_move_iterator(outputs.end()));
  outputs.clear();
  filled_.notify_one();
}

std::vector<Output> Outbox::take_all(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  filled_.wait_for(lock, timeout, [&] { return closed_ || !pending_.empty(); });
  emptied_.notify_one();
  return std::exchange(pending_, {});
}

void Outbox::lift_limit() {
  const std::lock_guard lock(mutex_);
  limited_ = false;
  emptied_.notify_all();
}

void Outbox::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  filled_.notify_all();
}

}  // namespace llmsrv
