#include "cpp/cuda/step_clock.h"

namespace llmsrv {
namespace {

constexpr std::size_t kKeptSteps = 1024;

}  // namespace

StepClock::StepClock(const Device& device) {
  for (std::unique_ptr<Step>& step : steps_) step = std::make_unique<Step>(device);
}

void StepClock::begin(const DeviceStream& stream) {
  const Clock::time_point now = Clock::now();
  if (count_ > 0) at(count_ - 1).host_s = std::chrono::duration<double>(now - host_began_ - waited_).count();
  if (count_ > 2) take(count_ - 2);
  host_began_ = now;
  waited_ = {};
  ++count_;
  newest().began.record(stream);
}

void StepClock::take(std::size_t step) {
  const Step& taken = at(step);
  taken.ended.synchronize();  // a step whose results nobody asked for may not be done
  const StepTimes times{taken.began.seconds_until(taken.ended), at(step - 1).ended.seconds_until(taken.began),
                        taken.host_s};
  const std::lock_guard lock(mutex_);
  taken_.push_back(times);
  if (taken_.size() > kKeptSteps) taken_.pop_front();
}

std::vector<StepTimes> StepClock::recent() const {
  const std::lock_guard lock(mutex_);
  return {taken_.begin(), taken_.end()};
}

}  // namespace llmsrv
