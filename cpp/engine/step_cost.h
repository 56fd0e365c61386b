// What one more token costs in a step: the slope of step time over tokens, by least squares over recent steps.
//
// seconds = a + b tokens; the weight of a step halves with every kHalfLifeSteps steps after it.
// Thread rule: engine thread only.
#pragma once

#include <optional>

namespace llmsrv {

class StepCost {
 public:
  static constexpr double kHalfLifeSteps = 64.0;

  void note(int tokens, double seconds);

  // Nothing while all steps were alike, or where more tokens seem to cost nothing.
  std::optional<double> slope_s() const;

  // The slope; where it is not known, the whole time over the tokens, which is more. Nothing before the first step.
  std::optional<double> seconds_per_token() const;

 private:
  double weight_ = 0.0;
  double tokens_ = 0.0;
  double seconds_ = 0.0;
  double tokens_squared_ = 0.0;
  double product_ = 0.0;
};

}  // namespace llmsrv
