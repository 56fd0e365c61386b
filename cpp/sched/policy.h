// Who goes first. A policy is one strict order over sequences; waiting, running and the choice of a victim all follow
// it.
#pragma once

#include "cpp/sched/sequence.h"

namespace llmsrv {

// The policies, by name.
enum class SchedulingPolicy { kFcfs, kPriority, kFair };

// First come, first served. Ids are given in order of arrival.
struct FcfsPolicy {
  bool operator()(const Sequence* a, const Sequence* b) const { return a->id() < b->id(); }
};

}  // namespace llmsrv
