#include "cpp/engine/pack.h"

namespace llmsrv {

void pack(const StepPlan& plan, const Scheduler& scheduler, int block_size, StepInputs& inputs) {
  inputs.tokens.clear();
  inputs.positions.clear();
  inputs.slots.clear();
  inputs.from_draw.clear();
  inputs.ranges.clear();
  inputs.block_size = block_size;
  for (const PlannedRange& range : plan.ranges) {
    const Sequence& sequence = scheduler.sequence(range.sequence);
    const int end = range.first_position + range.token_count;
    inputs.ranges.push_back({static_cast<int>(inputs.tokens.size()), range.token_count, end, sequence.blocks().data()});
    for (int position = range.first_position; position < end; ++position) {
      // The token that is not known yet is a sequence's last one.
      const bool is_known = position < sequence.known_count();
      if (!is_known) inputs.from_draw.push_back({static_cast<int>(inputs.tokens.size()), *sequence.awaited_row()});
      inputs.tokens.push_back(is_known ? sequence.token(position) : 0);
      inputs.positions.push_back(position);
      inputs.slots.push_back({sequence.blocks()[position / block_size], position % block_size});
    }
  }
}

}  // namespace llmsrv
