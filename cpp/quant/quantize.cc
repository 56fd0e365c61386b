#include "cpp/quant/quantize.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "cpp/base/check.h"
#include "cpp/base/float16.h"

namespace llmsrv {
namespace {

constexpr std::uint16_t kF16Nan = 0x7e00;

using Group = std::span<const float, packed::kGroupCols>;

bool all_finite(Group weights) {
  return std::ranges::all_of(weights, [](float value) { return std::isfinite(value); });
}

std::uint8_t to_quant(float steps, float low, float high, int offset) {
  // nearbyint() rounds ties to even in the default mode, which nothing here changes.
  return static_cast<std::uint8_t>(static_cast<int>(std::clamp(std::nearbyint(steps), low, high)) + offset);
}

void quantize_s8(Group weights, QuantBlock& block) {
  float largest = 0.0f;
  for (const float value : weights) largest = std::max(largest, std::fabs(value));
  block.scale = float_to_f16(largest / 127.0f);
  const float d = f16_to_float(block.scale);
  if (!std::isfinite(d)) {
    block.scale = kF16Nan;
    std::ranges::fill(block.quants, std::uint8_t{128});
    return;
  }
  for (std::size_t k = 0; k < weights.size(); ++k) {
    block.quants[k] = to_quant(d > 0.0f ? weights[k] / d : 0.0f, -127.0f, 127.0f, 128);
  }
}

void quantize_u4(Group weights, QuantBlock& block) {
  const auto [low, high] = std::ranges::minmax(weights);
  block.min = float_to_f16(low);
  const float m = f16_to_float(block.min);
  block.scale = float_to_f16(std::max(high - m, 0.0f) / 15.0f);
  const float d = f16_to_float(block.scale);
  if (!std::isfinite(m) || !std::isfinite(d)) {
    block.scale = kF16Nan;
    std::ranges::fill(block.quants, std::uint8_t{0});
    return;
  }
  for (std::size_t k = 0; k < weights.size(); ++k) {
    block.quants[k] = to_quant(d > 0.0f ? (weights[k] - m) / d : 0.0f, 0.0f, 15.0f, 0);
  }
}

}  // namespace

bool can_quantize_to(WeightFormat format) { return format == WeightFormat::kS8 || format == WeightFormat::kU4; }

void quantize_group(WeightFormat format, const float* weights, QuantBlock& block) {
  LLMSRV_CHECK(can_quantize_to(format));
  const Group group(weights, packed::kGroupCols);
  if (!all_finite(group)) {
    block.scale = kF16Nan;
    block.min = 0;
    std::ranges::fill(block.quants, std::uint8_t{0});
    return;
  }
  format == WeightFormat::kS8 ? quantize_s8(group, block) : quantize_u4(group, block);
}

}  // namespace llmsrv
