#include "cpp/sched/policy.h"

#include <algorithm>

#include "cpp/base/check.h"

namespace llmsrv {
namespace {

// How many full steps a tenant may be ahead. A smaller lead takes sequences out of batches for differences that would
// pass by themselves: three tenants that ask for the same lose 8 % of the throughput with 1, and 0.5 % with 4.
constexpr int kFairLeadSteps = 4;

}  // namespace

std::unique_ptr<Policy> make_policy(SchedulingPolicy policy, const std::map<std::string, double>& tenant_weights,
                                    int max_step_tokens) {
  switch (policy) {
    case SchedulingPolicy::kFcfs:
      return std::make_unique<FcfsPolicy>();
    case SchedulingPolicy::kPriority:
      return std::make_unique<PriorityPolicy>();
    case SchedulingPolicy::kFair:
      return std::make_unique<FairPolicy>(tenant_weights, kFairLeadSteps * max_step_tokens);
  }
  throw InternalError("unknown policy");
}

bool LevelPolicy::before(const Sequence& a, const Sequence& b) const {
  const int level_a = level(a);
  const int level_b = level(b);
  return level_a != level_b ? level_a < level_b : a.id() < b.id();
}

struct Tenant {
  std::string name;
  double weight = 1.0;
  double used = 0.0;  // tokens over weight; moves in begin_step() only
  int charged = 0;    // tokens of this step
  int sequences = 0;  // waiting and running
  std::uint64_t last_running_step = 0;
  std::set<std::pair<SequenceId, Sequence*>> waiting;
};

namespace {

constexpr std::size_t kIdleTenantsMax = 1024;

}  // namespace

FairPolicy::FairPolicy(const std::map<std::string, double>& weights, int lead_tokens)
    : weights_(weights), lead_tokens_(lead_tokens) {
  LLMSRV_CHECK(lead_tokens >= 1);
  for (const auto& [name, weight] : weights_) LLMSRV_CHECK(weight > 0.0);
}

FairPolicy::~FairPolicy() = default;

bool FairPolicy::before(const Sequence& a, const Sequence& b) const {
  return std::pair(a.tenant_->used, a.id()) < std::pair(b.tenant_->used, b.id());
}

void FairPolicy::push(Sequence& sequence) {
  Tenant& tenant = *sequence.tenant_;
  dequeue(tenant);
  tenant.waiting.emplace(sequence.id(), &sequence);
  enqueue(tenant);
}

void FairPolicy::erase(Sequence& sequence) {
  Tenant& tenant = *sequence.tenant_;
  dequeue(tenant);
  tenant.waiting.erase({sequence.id(), &sequence});
  enqueue(tenant);
}

Sequence* FairPolicy::next() const {
  if (queue_.empty()) return nullptr;
  const Tenant& tenant = *std::get<Tenant*>(*queue_.begin());
  return is_within_lead(tenant) ? tenant.waiting.begin()->second : nullptr;
}

// What the running sequence loses may have to be computed again, so its tenant must be ahead by that much more; and it
// keeps its place until it has gained a token there, so that two tenants cannot chase each other forever.
bool FairPolicy::outranks(const Sequence& waiting, const Sequence& running) const {
  const Tenant& ahead = *running.tenant_;
  const double lead = (ahead.used - waiting.tenant_->used) * ahead.weight;
  return running.gained_count() > 0 && lead > lead_tokens_ + running.token_count();
}

void FairPolicy::enter(Sequence& sequence) {
  std::unique_ptr<Tenant>& owned = tenants_[sequence.claim().tenant];
  if (owned == nullptr) {
    owned = std::make_unique<Tenant>();
    owned->name = sequence.claim().tenant;
    const auto weight = weights_.find(owned->name);
    if (weight != weights_.end()) owned->weight = weight->second;
  }
  if (owned->sequences++ == 0) {
    std::erase(idle_, owned.get());
    owned->used = std::max(owned->used, level_);
  }
  sequence.tenant_ = owned.get();
}

void FairPolicy::leave(Sequence& sequence) {
  if (--sequence.tenant_->sequences == 0) idle_.push_back(sequence.tenant_);
  sequence.tenant_ = nullptr;
}

void FairPolicy::begin_step(std::span<Sequence* const> running) {
  apply_charges();
  lift_newcomers(running);
  ++step_;
  std::optional<double> last;
  for (Sequence* const sequence : running) {
    sequence->tenant_->last_running_step = step_;
    last = std::min(last.value_or(sequence->tenant_->used), sequence->tenant_->used);
  }
  if (!last && !queue_.empty()) last = std::get<double>(*queue_.begin());
  level_ = last.value_or(level_);
  forget_idle_tenants();
}

void FairPolicy::charge(Sequence& sequence, int tokens) {
  Tenant& tenant = *sequence.tenant_;
  if (tenant.charged == 0) charged_.push_back(&tenant);
  tenant.charged += tokens;
}

bool FairPolicy::is_within_lead(const Tenant& tenant) const {
  return (tenant.used - level_) * tenant.weight <= lead_tokens_;
}

void FairPolicy::apply_charges() {
  for (Tenant* const tenant : charged_) {
    dequeue(*tenant);
    tenant->used += tenant->charged / tenant->weight;
    tenant->charged = 0;
    enqueue(*tenant);
  }
  charged_.clear();
}

// A tenant that waited long for its first place may catch up by one lead, not by all that it has missed.
void FairPolicy::lift_newcomers(std::span<Sequence* const> running) {
  for (Sequence* const sequence : running) {
    Tenant& tenant = *sequence->tenant_;
    if (tenant.last_running_step == step_) continue;
    dequeue(tenant);
    tenant.used = std::max(tenant.used, level_ - lead_tokens_ / tenant.weight);
    enqueue(tenant);
  }
}

void FairPolicy::forget_idle_tenants() {
  const auto forget = [&](Tenant* tenant) {
    tenants_.erase(std::string(tenant->name));
    return true;
  };
  std::erase_if(idle_, [&](Tenant* tenant) { return tenant->used <= level_ && forget(tenant); });
  if (idle_.size() <= kIdleTenantsMax) return;
  const auto least_ahead = [](const Tenant* a, const Tenant* b) { return a->used > b->used; };
  std::nth_element(idle_.begin(), idle_.begin() + kIdleTenantsMax, idle_.end(), least_ahead);
  std::for_each(idle_.begin() + kIdleTenantsMax, idle_.end(), forget);
  idle_.resize(kIdleTenantsMax);
}

void FairPolicy::enqueue(Tenant& tenant) {
  if (!tenant.waiting.empty()) queue_.emplace(tenant.used, tenant.waiting.begin()->first, &tenant);
}

void FairPolicy::dequeue(Tenant& tenant) {
  if (!tenant.waiting.empty()) queue_.erase({tenant.used, tenant.waiting.begin()->first, &tenant});
}

}  // namespace llmsrv
