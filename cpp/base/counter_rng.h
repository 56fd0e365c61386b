// Random numbers as a pure function of (seed, choice index, position): nothing else can change a draw.
// Source of the mixing function: splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators").
#pragma once

#include <cstdint>

namespace llmsrv {

inline std::uint64_t splitmix64(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

// Uniform in [0, 1) with 53 random bits.
inline double counter_uniform(std::uint64_t seed, std::uint32_t choice_index, std::uint32_t position) {
  const std::uint64_t counter = (static_cast<std::uint64_t>(choice_index) << 32) | position;
  const std::uint64_t bits = splitmix64(splitmix64(seed) ^ splitmix64(counter ^ 0x5851f42d4c957f2dull));
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

}  // namespace llmsrv
