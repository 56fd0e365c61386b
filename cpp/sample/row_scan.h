// Scans over one row of logits, written so that the compiler vectorizes them for any x86-64 or aarch64. Sums have a
// fixed order, so that a row's result is its own.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cpp/base/types.h"

namespace llmsrv {

// False when any value is NaN or infinite.
inline bool all_finite(std::span<const float> row) {
  std::uint32_t bad = 0;
  for (const float value : row) bad |= (std::bit_cast<std::uint32_t>(value) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
  return bad == 0;
}

// The largest value. REQUIRES: row is not empty and holds no NaN
inline float row_max(std::span<const float> row) {
  constexpr std::size_t kLanes = 16;
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, row[0]);
  std::size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) lanes[j] = row[i + j] > lanes[j] ? row[i + j] : lanes[j];
  }
  float max = *std::max_element(lanes, lanes + kLanes);
  for (; i < row.size(); ++i) max = std::max(max, row[i]);
  return max;
}

// The first place of the largest value: ties go to the lower id. REQUIRES: as row_max
inline TokenId row_argmax(std::span<const float> row) {
  constexpr std::size_t kBlock = 1024;
  std::size_t best = 0;
  float best_max = row_max(row.first(std::min(kBlock, row.size())));
  for (std::size_t begin = kBlock; begin < row.size(); begin += kBlock) {
    const float max = row_max(row.subspan(begin, std::min(kBlock, row.size() - begin)));
    if (max > best_max) {
      best_max = max;
      best = begin;
    }
  }
  return static_cast<TokenId>(std::find(row.begin() + static_cast<std::ptrdiff_t>(best), row.end(), best_max) -
                              row.begin());
}

// e^x to 2 units in the last place for x <= 0; 0 where that is below the smallest normal float. Not for NaN.
inline float exp_of_negative(float x) {
  constexpr float kLowest = -87.336544f;      // ln 2^-126
  constexpr float kRoundBias = 12582912.0f;   // 1.5 * 2^23: adding it rounds to an integer in the low mantissa bits
  constexpr float kLn2High = 0.693359375f;    // n times it is exact
  constexpr float kLn2Low = -2.12194440e-4f;  // ln 2 - kLn2High
  const float clamped = x < kLowest ? kLowest : x;
  const float biased = clamped * 1.44269504f + kRoundBias;
  const float n = biased - kRoundBias;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  float p = 1.0f / 5040;  // Taylor: |r| <= ln(2) / 2, so the next term is below 6e-9
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const std::uint32_t exponent = (std::bit_cast<std::uint32_t>(biased) + 127u) << 23;  // 2^n
  return x < kLowest ? 0.0f : p * std::bit_cast<float>(exponent);
}

// Sum in double precision.
inline double row_sum(std::span<const float> row) {
  constexpr std::size_t kLanes = 8;
  double lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) lanes[j] += static_cast<double>(row[i + j]);
  }
  double sum = 0.0;
  for (; i < row.size(); ++i) sum += static_cast<double>(row[i]);
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace llmsrv
