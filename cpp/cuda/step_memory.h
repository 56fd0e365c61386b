// A step's inputs on the device: packed on the host into one run of integers and copied at once.
//
//   tokens [rows] | positions [rows] | slot blocks [rows] | slot offsets [rows] | ranges [sequences, 5] | block ids
//
// A token that the host does not know yet, the one that row k of the newest draw gets, is packed as -1 - k.
//
// Ranges of one row, which decode, stand first. A step that only decodes is filled up to one of a few numbers of rows,
// so that few forms of steps occur: such a row has no range, and its slot's block is -1, which stores nothing. The host
// fills one of two pinned buffers while the device may still read the other. Thread rule: as the backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "cpp/cuda/device.h"
#include "cpp/cuda/staging.h"
#include "cpp/cuda/step_graphs.h"
#include "cpp/ops/backend.h"

namespace llmsrv {

class StepMemory {
 public:
  // Memory of the device that it takes.
  static std::size_t bytes(const StepLimits& limits);
  StepMemory(const Device& device, const StepLimits& limits, int segment_keys);

  // Has the device's copy hold these inputs, behind what `stream` has to do.
  void upload(const StepInputs& inputs, const DeviceStream& stream);

  // Rows of the step that was uploaded last, padding included.
  int rows() const { return static_cast<int>(rows_); }
  // Its form, when it only decodes.
  const std::optional<StepForm>& form() const { return form_; }
  // Where its parts are, in device memory.
  const std::int32_t* tokens() const { return device_ints(0); }
  const std::int32_t* positions() const { return device_ints(rows_); }
  const std::int32_t* slot_blocks() const { return device_ints(2 * rows_); }
  const std::int32_t* slot_offsets() const { return device_ints(3 * rows_); }
  const device::Range* ranges() const;
  const std::int32_t* block_ids() const { return device_ints(4 * rows_ + kRangeInts * ranges_); }

  // What one launch of attention takes.
  struct RangeGroup {
    int first = 0;  // of ranges()
    int count = 0;
    int rows_max = 0;
    int segments_max = 0;
  };
  const RangeGroup& by_segments() const { return by_segments_; }
  const RangeGroup& in_one_run() const { return in_one_run_; }
  // The most (segment, row) pairs of the ranges by segments.
  static int partials_max(const StepLimits& limits, int segment_keys);

 private:
  static constexpr std::size_t kRangeInts = sizeof(device::Range) / sizeof(std::int32_t);

  const std::int32_t* device_ints(std::size_t index) const {
    return reinterpret_cast<const std::int32_t*>(device_memory_.data()) + index;
  }
  std::size_t rows_with_padding(const StepInputs& inputs) const;
  // Both return the end of what they wrote.
  std::int32_t* fill(const StepInputs& inputs, std::int32_t* ints);
  std::int32_t* fill_ranges(const StepInputs& inputs, device::Range* ranges, std::int32_t* block_ids);

  const int segment_keys_;
  const std::size_t padded_most_;
  const int partials_room_;
  DeviceBuffer device_memory_;
  Staging staging_;
  std::size_t rows_ = 0;
  std::size_t ranges_ = 0;
  RangeGroup by_segments_;
  RangeGroup in_one_run_;
  std::optional<StepForm> form_;
};

}  // namespace llmsrv
