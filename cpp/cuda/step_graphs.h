// Decode steps as graphs: the launches of a step, kept when a step of its form runs for the second time and run again
// by one call from then on. What changes between steps of a form stands in device memory, at the same addresses. Thread
// rule: as the backend.
#pragma once

#include <compare>
#include <functional>
#include <map>

#include "cpp/cuda/device.h"

namespace llmsrv {

// Steps of one form have the same launches.
struct StepForm {
  int rows = 0;      // padding included
  int segments = 0;  // bound of each range
  auto operator<=>(const StepForm&) const = default;
};

class StepGraphs {
 public:
  StepGraphs(const Device& device, const DeviceStream& stream) : device_(device), stream_(stream) {}
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // True when this form was not asked for before: such a step runs by itself, since a kernel that is not loaded yet
  // must not be loaded within a capture.
  bool is_first(const StepForm& form) { return graphs_.emplace(form, nullptr).second; }
  bool has(const StepForm& form) const { return graphs_.at(form) != nullptr; }
  // Keeps the launches that `work` makes on the stream, and runs none of them.
  void capture(const StepForm& form, const std::function<void()>& work);
  // REQUIRES: has(form)
  void launch(const StepForm& form) const;

 private:
  const Device& device_;
  const DeviceStream& stream_;
  std::map<StepForm, device::Graph> graphs_;  // nullptr: seen once
};

}  // namespace llmsrv
