#include "cpp/engine/pack.h"

namespace llmsrv {

void pack(const StepPlan& plan, const Scheduler& scheduler, int block_size, StepInputs& inputs) {
  inputs.tokens.clear();
  inputs.positions.clear();
  inputs.slots.clear();
  inputs.ranges.clear();
  inputs.block_size = block_size;
  for (const PlannedRange& range : plan.ranges) {
    const Sequence& sequence = scheduler.sequence(range.sequence);
    const int end = range.first_position + range.token_count;
    inputs.ranges.push_back({static_cast<int>(inputs.tokens.size()), range.token_count, end, sequence.blocks().data()});
    for (int position = range.first_position; position < end; ++position) {
      inputs.tokens.push_back(sequence.token(position));
      inputs.positions.push_back(position);
      inputs.slots.push_back({sequence.blocks()[position / block_size], position % block_size});
    }
  }
}

}  // namespace llmsrv
