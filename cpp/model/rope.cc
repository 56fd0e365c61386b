#include "cpp/model/rope.h"

#include <cmath>
#include <numbers>

namespace llmsrv {
namespace {

double llama3_scaled(double frequency, const RopeScaling& scaling) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const double rotations = scaling.original_max_position / wavelength;
  if (rotations < scaling.low_freq_factor) return frequency / scaling.factor;
  if (rotations > scaling.high_freq_factor) return frequency;
  const double blend = (rotations - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - blend) * frequency / scaling.factor + blend * frequency;
}

}  // namespace

std::vector<double> rope_frequencies(const ModelSpec& spec) {
  std::vector<double> frequencies(static_cast<std::size_t>(spec.head_dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double frequency = std::pow(spec.rope_theta, -2.0 * static_cast<double>(i) / spec.head_dim);
    if (!spec.rope_scaling) {
      frequencies[i] = frequency;
    } else if (spec.rope_scaling->kind == RopeScalingKind::kLinear) {
      frequencies[i] = frequency / spec.rope_scaling->factor;
    } else {
      frequencies[i] = llama3_scaled(frequency, *spec.rope_scaling);
    }
  }
  return frequencies;
}

RopeTables::RopeTables(const ModelSpec& spec, int positions) : positions_(positions) {
  const std::vector<double> frequencies = rope_frequencies(spec);
  const std::size_t count = static_cast<std::size_t>(positions) * frequencies.size();
  cos_.reserve(count);
  sin_.reserve(count);
  for (int position = 0; position < positions; ++position) {
    for (const double frequency : frequencies) {
      cos_.push_back(static_cast<float>(std::cos(position * frequency)));
      sin_.push_back(static_cast<float>(std::sin(position * frequency)));
    }
  }
}

std::size_t RopeTables::bytes(const ModelSpec& spec, int positions) {
  return static_cast<std::size_t>(positions) * static_cast<std::size_t>(spec.head_dim) * sizeof(float);
}

}  // namespace llmsrv
