#include "cpp/cuda/step_memory.h"

#include <algorithm>
#include <bit>

#include "cpp/base/check.h"

namespace llmsrv {
namespace {

// Bounds what segments leave behind, where many long sequences decode. Those beyond it run in one piece: the same bits,
// and there are enough of them to fill a device.
constexpr int kPartialsMost = 8192;

int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Few sizes, and never more than an eighth of padding beyond 64 rows.
std::size_t padded_size(std::size_t rows) {
  if (rows <= 8) return std::bit_ceil(rows);
  const std::size_t step = std::max<std::size_t>(8, std::bit_ceil(rows) / 16);
  return (rows + step - 1) / step * step;
}

}  // namespace

int StepMemory::partials_max(const StepLimits& limits, int segment_keys) {
  return std::min(limits.sequences * ceil_div(limits.context_len, segment_keys), kPartialsMost);
}

std::size_t StepMemory::bytes(const StepLimits& limits) {
  const std::size_t rows = 4 * static_cast<std::size_t>(limits.tokens);
  const auto blocks = static_cast<std::size_t>(ceil_div(limits.context_len, kBlockSizeMin));
  return (rows + static_cast<std::size_t>(limits.sequences) * (kRangeInts + blocks)) * sizeof(std::int32_t);
}

StepMemory::StepMemory(const Device& device, const StepLimits& limits, int segment_keys)
    : segment_keys_(segment_keys),
      padded_most_(static_cast<std::size_t>(std::min(limits.tokens, limits.sequences))),
      partials_room_(partials_max(limits, segment_keys)),
      device_memory_(device, bytes(limits), MemoryPlace::kDevice),
      staging_(device, bytes(limits)) {}

const device::Range* StepMemory::ranges() const {
  return reinterpret_cast<const device::Range*>(device_ints(4 * rows_));
}

void StepMemory::upload(const StepInputs& inputs, const DeviceStream& stream) {
  auto* begin = reinterpret_cast<std::int32_t*>(staging_.next());
  const std::size_t bytes = static_cast<std::size_t>(fill(inputs, begin) - begin) * sizeof(std::int32_t);
  staging_.copy(device_memory_.data(), bytes, stream);
}

// A step whose ranges are all decoded by segments is padded.
std::size_t StepMemory::rows_with_padding(const StepInputs& inputs) const {
  int partials = 0;
  for (const AttentionRange& range : inputs.ranges) {
    if (range.row_count != 1) return inputs.tokens.size();
    partials += ceil_div(range.context_len, segment_keys_);
  }
  if (partials > partials_room_ || inputs.ranges.size() != inputs.tokens.size()) return inputs.tokens.size();
  return std::max(inputs.tokens.size(), std::min(padded_size(inputs.tokens.size()), padded_most_));
}

std::int32_t* StepMemory::fill(const StepInputs& inputs, std::int32_t* ints) {
  const std::size_t tokens = inputs.tokens.size();
  LLMSRV_CHECK(inputs.positions.size() == tokens && inputs.slots.size() == tokens);
  rows_ = rows_with_padding(inputs);
  ranges_ = inputs.ranges.size() + (rows_ - tokens);
  std::fill_n(ints, 4 * rows_ + kRangeInts * ranges_, 0);
  std::fill_n(ints + 2 * rows_, rows_, -1);
  std::copy(inputs.tokens.begin(), inputs.tokens.end(), ints);
  for (const DrawnToken& drawn : inputs.from_draw) ints[drawn.row] = -1 - drawn.draw_row;
  std::copy(inputs.positions.begin(), inputs.positions.end(), ints + rows_);
  for (std::size_t row = 0; row < tokens; ++row) {
    ints[2 * rows_ + row] = inputs.slots[row].block;
    ints[3 * rows_ + row] = inputs.slots[row].offset;
  }
  auto* ranges = reinterpret_cast<device::Range*>(ints + 4 * rows_);
  return fill_ranges(inputs, ranges, ints + 4 * rows_ + kRangeInts * ranges_);
}

// Ranges by segments are put from the front on, the others from the back.
std::int32_t* StepMemory::fill_ranges(const StepInputs& inputs, device::Range* ranges, std::int32_t* block_ids) {
  by_segments_ = {};
  in_one_run_ = {};
  int partials = 0;
  std::int32_t first_block = 0;
  for (const AttentionRange& range : inputs.ranges) {
    const int segments = ceil_div(range.context_len, segment_keys_);
    const bool is_decode = range.row_count == 1 && partials + segments <= partials_room_;
    RangeGroup& group = is_decode ? by_segments_ : in_one_run_;
    group.rows_max = std::max(group.rows_max, range.row_count);
    group.segments_max = std::max(group.segments_max, segments);
    const auto place = static_cast<std::size_t>(group.count++);
    ranges[is_decode ? place : ranges_ - 1 - place] = {range.first_row, range.row_count, range.context_len, first_block,
                                                       is_decode ? partials : 0};
    if (is_decode) partials += segments;
    const int blocks = ceil_div(range.context_len, inputs.block_size);
    std::copy_n(range.blocks, blocks, block_ids + first_block);
    first_block += blocks;
  }
  in_one_run_.first = by_segments_.count;
  // The same bound for many contexts; blocks beyond a context leave at once.
  by_segments_.segments_max = static_cast<int>(std::bit_ceil(static_cast<unsigned>(by_segments_.segments_max)));
  form_.reset();
  if (in_one_run_.count == 0 && by_segments_.count == static_cast<int>(inputs.tokens.size())) {
    by_segments_.count = static_cast<int>(ranges_);
    form_ = StepForm{rows(), by_segments_.segments_max};
  }
  return block_ids + first_block;
}

}  // namespace llmsrv
