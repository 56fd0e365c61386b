#include "cpp/engine/step_cost.h"

#include <cmath>

namespace llmsrv {
namespace {

// Below this relative spread of token counts a slope says nothing.
constexpr double kSpreadMin = 0.05;

}  // namespace

void StepCost::note(int tokens, double seconds) {
  const double keep = std::exp2(-1.0 / kHalfLifeSteps);
  const double x = tokens;
  weight_ = keep * weight_ + 1.0;
  tokens_ = keep * tokens_ + x;
  seconds_ = keep * seconds_ + seconds;
  tokens_squared_ = keep * tokens_squared_ + x * x;
  product_ = keep * product_ + x * seconds;
}

std::optional<double> StepCost::slope_s() const {
  const double spread = weight_ * tokens_squared_ - tokens_ * tokens_;
  if (spread <= kSpreadMin * tokens_ * tokens_) return std::nullopt;
  const double slope = (weight_ * product_ - tokens_ * seconds_) / spread;
  return slope > 0.0 ? std::optional(slope) : std::nullopt;
}

std::optional<double> StepCost::seconds_per_token() const {
  if (weight_ == 0.0) return std::nullopt;
  return slope_s().value_or(seconds_ / tokens_);
}

}  // namespace llmsrv
