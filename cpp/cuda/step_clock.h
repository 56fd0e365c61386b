// How long steps take, by the device's clock and by the host's: for who measures, as it costs a few events a step.
//
// A step's work starts at begin() and ends at its last end(). Its times are taken when the second step after it begins,
// which no caller runs ahead of, so that to measure holds nothing up. What an idle caller waits for counts as time of
// the host and as a gap: medians do not mind.
// Thread rule: as the backend, but recent().
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "cpp/cuda/device.h"
#include "cpp/ops/backend.h"

namespace llmsrv {

class StepClock {
 public:
  explicit StepClock(const Device& device);

  // What the stream is given from now on is the next step's.
  void begin(const DeviceStream& stream);
  // The stream was given the step's work, or more of it. REQUIRES: a step began
  void end(const DeviceStream& stream) const { newest().ended.record(stream); }
  // Calls what waits for the device.
  template <typename F>
  void wait(const F& f) {
    const Clock::time_point start = Clock::now();
    f();
    waited_ += Clock::now() - start;
  }

  // Of the last steps, oldest first: not of the very first, which has no gap, nor of the two newest. Any thread.
  std::vector<StepTimes> recent() const;

 private:
  using Clock = std::chrono::steady_clock;

  struct Step {
    explicit Step(const Device& device)
        : began(device, DeviceEvent::Kind::kTimed), ended(device, DeviceEvent::Kind::kTimed) {}
    DeviceEvent began;
    DeviceEvent ended;
    double host_s = 0.0;
  };

  Step& at(std::size_t step) const { return *steps_[step % steps_.size()]; }
  const Step& newest() const { return at(count_ - 1); }
  void take(std::size_t step);

  std::array<std::unique_ptr<Step>, 4> steps_;  // the newest: one that is taken, its predecessor, and two under way
  std::size_t count_ = 0;                       // of steps that began
  Clock::time_point host_began_;                // the newest
  Clock::duration waited_{};                    // since then
  mutable std::mutex mutex_;
  std::deque<StepTimes> taken_;  // guarded by mutex_
};

}  // namespace llmsrv
