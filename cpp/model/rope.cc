#include "cpp/model/rope.h"

#include <algorithm>
#include <cmath>
#include <complex>
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

bool has_rope_of_window(const ModelSpec& spec, int layer) { return spec.window_rope_theta && spec.is_windowed(layer); }

// One layer of each kind of RoPE that the model has.
std::vector<int> kinds_of_rope(const ModelSpec& spec) {
  std::vector<int> layers = {0};
  for (int layer = 1; layer < spec.num_layers && layers.size() == 1; ++layer) {
    if (has_rope_of_window(spec, layer) != has_rope_of_window(spec, 0)) layers.push_back(layer);
  }
  return layers;
}

// e^(i angle) of each frequency at one position.
using Rotations = std::vector<std::complex<double>>;
Rotations rotations(const std::vector<double>& frequencies, int position) {
  Rotations result;
  for (const double frequency : frequencies) result.push_back(std::polar(1.0, position * frequency));
  return result;
}

// Every kStride-th position is computed, and the others by adding angles: as exact in double precision, and a long
// table takes milliseconds, not half a second.
void append_table(const std::vector<double>& frequencies, int positions, std::vector<float>& cos,
                  std::vector<float>& sin) {
  constexpr int kStride = 256;
  std::vector<Rotations> steps;
  for (int step = 0; step < std::min(kStride, positions); ++step) steps.push_back(rotations(frequencies, step));
  Rotations start;
  for (int position = 0; position < positions; ++position) {
    if (position % kStride == 0) start = rotations(frequencies, position);
    const Rotations& step = steps[static_cast<std::size_t>(position % kStride)];
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      cos.push_back(static_cast<float>(start[i].real() * step[i].real() - start[i].imag() * step[i].imag()));
      sin.push_back(static_cast<float>(start[i].real() * step[i].imag() + start[i].imag() * step[i].real()));
    }
  }
}

}  // namespace

std::vector<double> rope_frequencies(const ModelSpec& spec, int layer) {
  const bool is_apart = has_rope_of_window(spec, layer);
  const double theta = is_apart ? *spec.window_rope_theta : spec.rope_theta;
  std::vector<double> frequencies(static_cast<std::size_t>(spec.head_dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / spec.head_dim);
    if (is_apart || !spec.rope_scaling) {
      frequencies[i] = frequency;
    } else if (spec.rope_scaling->kind == RopeScalingKind::kLinear) {
      frequencies[i] = frequency / spec.rope_scaling->factor;
    } else {
      frequencies[i] = llama3_scaled(frequency, *spec.rope_scaling);
    }
  }
  return frequencies;
}

RopeTables::RopeTables(const ModelSpec& spec, int positions)
    : positions_(positions),
      table_values_(static_cast<std::size_t>(positions) * static_cast<std::size_t>(spec.head_dim / 2)) {
  const std::vector<int> kinds = kinds_of_rope(spec);
  cos_.reserve(kinds.size() * table_values_);
  sin_.reserve(kinds.size() * table_values_);
  for (const int layer : kinds) append_table(rope_frequencies(spec, layer), positions, cos_, sin_);
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    table_of_layer_.push_back(has_rope_of_window(spec, layer) == has_rope_of_window(spec, 0) ? 0 : 1);
  }
}

RopeTable RopeTables::layer(int index) const {
  const std::size_t first = static_cast<std::size_t>(table_of_layer_[static_cast<std::size_t>(index)]) * table_values_;
  return {cos_.data() + first, sin_.data() + first, positions_};
}

std::vector<std::span<const float>> RopeTables::memory() const {
  std::vector<std::span<const float>> memory;
  for (std::size_t first = 0; first < cos_.size(); first += table_values_) {
    memory.push_back(std::span(cos_).subspan(first, table_values_));
    memory.push_back(std::span(sin_).subspan(first, table_values_));
  }
  return memory;
}

std::size_t RopeTables::bytes(const ModelSpec& spec, int positions) {
  return kinds_of_rope(spec).size() * static_cast<std::size_t>(positions) * static_cast<std::size_t>(spec.head_dim) *
         sizeof(float);
}

}  // namespace llmsrv
