// SipHash-2-4 with 128 bits of output (Aumasson, Bernstein, "SipHash: a fast short-input PRF", 2012): a client who does
// not know the key cannot make two inputs collide.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace llmsrv {

struct Hash128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const Hash128&) const = default;
};

using HashKey = std::array<std::uint64_t, 2>;

Hash128 keyed_hash(const HashKey& key, std::span<const std::byte> data);

// A key that nobody else has.
HashKey random_hash_key();

}  // namespace llmsrv
