// A step that the device was given and whose tokens are not committed yet. A device that works behind its caller has
// one more of them while the older one is awaited.
#pragma once

#include <vector>

#include "cpp/sched/step_plan.h"

namespace llmsrv {

struct LaunchedStep {
  std::vector<PlannedRange> ranges;
  int token_count = 0;
  double start_s = 0.0;  // when its launch began
};

}  // namespace llmsrv
