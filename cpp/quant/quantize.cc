#include "cpp/quant/quantize.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "cpp/base/check.h"
#include "cpp/base/float16.h"

namespace llmsrv {
namespace {

constexpr std::uint16_t kF16Nan = 0x7e00;

using Group = std::span<const float>;
using Blocks = std::span<QuantBlock>;

// Where the integer of column k of a group goes.
std::uint8_t& quant_at(Blocks blocks, std::size_t k) {
  return blocks[k / packed::kGroupCols].quants[k % packed::kGroupCols];
}

void set_scales(Blocks blocks, std::uint16_t scale, std::uint16_t min) {
  for (QuantBlock& block : blocks) {
    block.scale = scale;
    block.min = min;
  }
}

// A group that stands for NaN.
void poison(Blocks blocks) {
  set_scales(blocks, kF16Nan, 0);
  for (QuantBlock& block : blocks) std::ranges::fill(block.quants, std::uint8_t{0});
}

bool all_finite(Group weights) {
  return std::ranges::all_of(weights, [](float value) { return std::isfinite(value); });
}

std::uint8_t to_quant(float steps, float low, float high, int offset) {
  // nearbyint() rounds ties to even in the default mode, which nothing here changes.
  return static_cast<std::uint8_t>(static_cast<int>(std::clamp(std::nearbyint(steps), low, high)) + offset);
}

void quantize_s8(Group weights, Blocks blocks) {
  float largest = 0.0f;
  for (const float value : weights) largest = std::max(largest, std::fabs(value));
  const std::uint16_t scale = float_to_f16(largest / 127.0f);
  const float d = f16_to_float(scale);
  if (!std::isfinite(d)) return poison(blocks);
  set_scales(blocks, scale, 0);
  for (std::size_t k = 0; k < weights.size(); ++k) {
    quant_at(blocks, k) = to_quant(d > 0.0f ? weights[k] / d : 0.0f, -127.0f, 127.0f, 128);
  }
}

void quantize_u4(Group weights, Blocks blocks) {
  const auto [low, high] = std::ranges::minmax(weights);
  const std::uint16_t min = float_to_f16(low);
  const float m = f16_to_float(min);
  const std::uint16_t scale = float_to_f16(std::max(high - m, 0.0f) / 15.0f);
  const float d = f16_to_float(scale);
  if (!std::isfinite(m) || !std::isfinite(d)) return poison(blocks);
  set_scales(blocks, scale, min);
  for (std::size_t k = 0; k < weights.size(); ++k) {
    quant_at(blocks, k) = to_quant(d > 0.0f ? (weights[k] - m) / d : 0.0f, 0.0f, 15.0f, 0);
  }
}

}  // namespace

bool can_quantize_to(WeightFormat format) {
  return source_of(format) == SourceFormat::kQ8_0 || source_of(format) == SourceFormat::kQ4_1;
}

void quantize_group(WeightFormat format, const float* weights, std::span<QuantBlock> blocks) {
  LLMSRV_CHECK(can_quantize_to(format));
  const Group group(weights, static_cast<std::size_t>(scale_cols(format)));
  LLMSRV_CHECK(blocks.size() * packed::kGroupCols == group.size());
  if (!all_finite(group)) return poison(blocks);
  source_of(format) == SourceFormat::kQ8_0 ? quantize_s8(group, blocks) : quantize_u4(group, blocks);
}

}  // namespace llmsrv
