// Who goes first. Waiting sequences, running ones and the choice of a victim all follow one policy.
//
// Thread rule: engine thread only. A policy holds the sequences that wait, and owns none of them.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "cpp/sched/sequence.h"

namespace llmsrv {

class Policy {
 public:
  virtual ~Policy() = default;

  // Whether `a` goes before `b`. A strict order of all sequences, which stands still from one begin_step() to the next.
  virtual bool before(const Sequence& a, const Sequence& b) const = 0;

  // `sequence` waits from now on.
  virtual void push(Sequence& sequence) = 0;
  // `sequence` waits no longer. REQUIRES: it waits
  virtual void erase(Sequence& sequence) = 0;
  // The first of those that wait. Null when nobody waits, or when it is not their turn.
  virtual Sequence* next() const = 0;

  // Whether `waiting` may take the blocks of `running` at once, instead of waiting until some are free. A class of
  // sequences that outranks another also goes before it.
  virtual bool outranks(const Sequence& /*waiting*/, const Sequence& /*running*/) const { return false; }

  // A sequence is new; it has ended, and waits no longer.
  virtual void enter(Sequence& /*sequence*/) {}
  virtual void leave(Sequence& /*sequence*/) {}
  // A step begins: from here on the order may be another one.
  virtual void begin_step(std::span<Sequence* const> /*running*/) {}
  // Whether a running sequence computes in this step. The first one always does.
  virtual bool has_turn(const Sequence& /*sequence*/) const { return true; }
  // `tokens` of the sequence are computed in this step.
  virtual void charge(Sequence& /*sequence*/, int /*tokens*/) {}
};

// The policies, by name.
enum class SchedulingPolicy { kFcfs, kPriority, kFair };

// `tenant_weights`: shares under kFair, 1 for a tenant that is not named. `max_step_tokens`: what the lead of kFair is
// measured in.
std::unique_ptr<Policy> make_policy(SchedulingPolicy policy, const std::map<std::string, double>& tenant_weights,
                                    int max_step_tokens);

// By level, lower first; within a level by arrival. A lower level outranks a higher one.
class LevelPolicy : public Policy {
 public:
  bool before(const Sequence& a, const Sequence& b) const override;
  void push(Sequence& sequence) override { waiting_.emplace(level(sequence), sequence.id(), &sequence); }
  void erase(Sequence& sequence) override { waiting_.erase({level(sequence), sequence.id(), &sequence}); }
  Sequence* next() const override { return waiting_.empty() ? nullptr : std::get<Sequence*>(*waiting_.begin()); }
  bool outranks(const Sequence& waiting, const Sequence& running) const override {
    return level(waiting) < level(running);
  }

 private:
  virtual int level(const Sequence& sequence) const = 0;

  std::set<std::tuple<int, SequenceId, Sequence*>> waiting_;
};

// First come, first served. Ids are given in order of arrival.
class FcfsPolicy final : public LevelPolicy {
  int level(const Sequence& /*sequence*/) const override { return 0; }
};

// By the request's priority, lower first.
class PriorityPolicy final : public LevelPolicy {
  int level(const Sequence& sequence) const override { return sequence.claim().priority; }
};

// Weighted fair sharing of computed tokens over tenants (start-time fair queueing: Goyal, Vin, Cheng, SIGCOMM 1996).
//
// A tenant's `used` is what was computed for it over its weight. Tenants go in order of `used`, and within a tenant
// sequences go in order of arrival. One that is ahead of the last running tenant by more than `lead` tokens sits out
// until the others have caught up; as the last one never sits out, the machine is never idle while there is work.
// A tenant that was away starts at the others' level: nobody saves up. Bounded: tenants without a sequence are kept
// only while they are ahead, and at most kIdleTenantsMax of them.
class FairPolicy final : public Policy {
 public:
  // REQUIRES: weights > 0, lead_tokens >= 1
  FairPolicy(const std::map<std::string, double>& weights, int lead_tokens);
  ~FairPolicy() override;

  bool before(const Sequence& a, const Sequence& b) const override;
  void push(Sequence& sequence) override;
  void erase(Sequence& sequence) override;
  Sequence* next() const override;
  bool outranks(const Sequence& waiting, const Sequence& running) const override;
  void enter(Sequence& sequence) override;
  void leave(Sequence& sequence) override;
  void begin_step(std::span<Sequence* const> running) override;
  bool has_turn(const Sequence& sequence) const override { return is_within_lead(*sequence.tenant_); }
  void charge(Sequence& sequence, int tokens) override;

 private:
  using Queue = std::set<std::tuple<double, SequenceId, Tenant*>>;  // used, first waiting sequence

  bool is_within_lead(const Tenant& tenant) const;
  void apply_charges();
  void lift_newcomers(std::span<Sequence* const> running);
  void forget_idle_tenants();
  void enqueue(Tenant& tenant);
  void dequeue(Tenant& tenant);

  const std::map<std::string, double> weights_;
  const double lead_tokens_;
  std::unordered_map<std::string, std::unique_ptr<Tenant>> tenants_;
  Queue queue_;                   // tenants with a sequence that waits
  std::vector<Tenant*> charged_;  // in this step
  std::vector<Tenant*> idle_;     // without a sequence
  double level_ = 0.0;            // `used` of the last running tenant
  std::uint64_t step_ = 0;
};

}  // namespace llmsrv
