#include "cpp/base/keyed_hash.h"

#include <bit>
#include <cstring>
#include <random>

namespace llmsrv {
namespace {

class SipState {
 public:
  explicit SipState(const HashKey& key)
      : v0_(key[0] ^ 0x736f6d6570736575ull),
        v1_(key[1] ^ 0x646f72616e646f6dull ^ 0xeeu),
        v2_(key[0] ^ 0x6c7967656e657261ull),
        v3_(key[1] ^ 0x7465646279746573ull) {}

  void absorb(std::uint64_t word) {
    v3_ ^= word;
    rounds(2);
    v0_ ^= word;
  }
  std::uint64_t finish(std::uint64_t domain_v2, std::uint64_t domain_v1) {
    v2_ ^= domain_v2;
    v1_ ^= domain_v1;
    rounds(4);
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }

 private:
  void rounds(int count) {
    for (int i = 0; i < count; ++i) {
      v0_ += v1_;
      v1_ = std::rotl(v1_, 13) ^ v0_;
      v0_ = std::rotl(v0_, 32);
      v2_ += v3_;
      v3_ = std::rotl(v3_, 16) ^ v2_;
      v0_ += v3_;
      v3_ = std::rotl(v3_, 21) ^ v0_;
      v2_ += v1_;
      v1_ = std::rotl(v1_, 17) ^ v2_;
      v2_ = std::rotl(v2_, 32);
    }
  }

  std::uint64_t v0_, v1_, v2_, v3_;
};

}  // namespace

Hash128 keyed_hash(const HashKey& key, std::span<const std::byte> data) {
  SipState state(key);
  std::size_t offset = 0;
  for (; offset + sizeof(std::uint64_t) <= data.size(); offset += sizeof(std::uint64_t)) {
    std::uint64_t word;
    std::memcpy(&word, data.data() + offset, sizeof(word));
    state.absorb(word);
  }
  std::uint64_t last = static_cast<std::uint64_t>(data.size()) << 56;
  for (std::size_t i = 0; offset + i < data.size(); ++i) {
    last |= static_cast<std::uint64_t>(data[offset + i]) << (8 * i);
  }
  state.absorb(last);
  Hash128 hash;
  hash.low = state.finish(0xee, 0);
  hash.high = state.finish(0, 0xdd);
  return hash;
}

HashKey random_hash_key() {
  std::random_device device;
  const auto word = [&] { return static_cast<std::uint64_t>(device()) << 32 | device(); };
  return {word(), word()};
}

}  // namespace llmsrv
