// Turns a plan (who computes which positions) into the model's input (which tokens, where they go).
#pragma once

#include "cpp/model/decoder.h"
#include "cpp/sched/scheduler.h"

namespace llmsrv {

// Fills `inputs` for the scheduler's current plan. The ranges point into the sequences' block lists: they are valid
// until the scheduler changes.
void pack(const StepPlan& plan, const Scheduler& scheduler, int block_size, StepInputs& inputs);

}  // namespace llmsrv
