#include "cpp/engine/team.h"

#include <utility>

namespace llmsrv {

Team::Team(int threads, std::vector<int> processors) : pool_(threads, std::move(processors)) {}

Team::Turn::Turn(Team& team) : team_(&team) {
  const std::uint32_t ticket = team.next_ticket_.fetch_add(1, std::memory_order_relaxed);
  // Acquire: what the one before wrote, into the pool's own state too, is seen by this one.
  for (std::uint32_t served; (served = team.served_ticket_.load(std::memory_order_acquire)) != ticket;) {
    team.served_ticket_.wait(served, std::memory_order_acquire);
  }
}

void Team::Turn::release() {
  if (team_ == nullptr) return;
  team_->served_ticket_.fetch_add(1, std::memory_order_release);
  team_->served_ticket_.notify_all();
  team_ = nullptr;
}

}  // namespace llmsrv
