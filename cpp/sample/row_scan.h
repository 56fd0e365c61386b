// Scans over one row of logits, written so that the compiler vectorizes them for any x86-64 or aarch64.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

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

}  // namespace llmsrv
