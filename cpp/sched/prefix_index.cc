#include "cpp/sched/prefix_index.h"

#include <algorithm>
#include <cstring>

#include "cpp/base/check.h"

namespace llmsrv {
namespace {

// Tags keep a first block with a salt apart from a later block whose parent has the same bytes.
enum class Tag : std::uint64_t { kFirstBlock = 1, kLaterBlock = 2 };

Hash128 mask_of(int bits) {
  const auto low_bits = [](int count) { return count >= 64 ? ~0ull : (1ull << count) - 1; };
  return {low_bits(bits), bits > 64 ? low_bits(bits - 64) : 0};
}

// Copies `bytes` bytes to `to` and returns the place after them.
std::byte* put(std::byte* to, const void* data, std::size_t bytes) {
  std::memcpy(to, data, bytes);
  return to + bytes;
}

}  // namespace

PrefixIndex::PrefixIndex(int blocks, int block_size, int hash_bits, const HashKey& key)
    : block_size_(block_size),
      hash_mask_(mask_of(hash_bits)),
      key_(key),
      records_(static_cast<std::size_t>(blocks)),
      tokens_(static_cast<std::size_t>(blocks) * static_cast<std::size_t>(block_size)) {
  LLMSRV_CHECK(hash_bits >= 1 && hash_bits <= 128);
  by_hash_.reserve(static_cast<std::size_t>(blocks));
}

std::optional<BlockId> PrefixIndex::find(std::optional<ContentId> parent, std::span<const TokenId> tokens,
                                         const std::string& salt) const {
  const auto found = by_hash_.find(hash_of(parent, tokens, salt));
  if (found == by_hash_.end() || !is_same(found->second, parent, tokens, salt)) return std::nullopt;
  return found->second;
}

std::optional<ContentId> PrefixIndex::insert(std::optional<ContentId> parent, std::span<const TokenId> tokens,
                                             const std::string& salt, BlockId block) {
  LLMSRV_CHECK(!holds(block));
  const Hash128 hash = hash_of(parent, tokens, salt);
  const auto [entry, is_new] = by_hash_.try_emplace(hash, block);
  if (!is_new) {
    if (!is_same(entry->second, parent, tokens, salt)) return std::nullopt;
    return content(entry->second);
  }
  records_[static_cast<std::size_t>(block)] = {next_content_++, parent, hash};
  std::copy(tokens.begin(), tokens.end(), tokens_of(block).begin());
  if (!parent && !salt.empty()) salts_[block] = salt;
  return content(block);
}

void PrefixIndex::erase(BlockId block) {
  LLMSRV_CHECK(holds(block));
  by_hash_.erase(record(block).hash);
  salts_.erase(block);
  records_[static_cast<std::size_t>(block)] = {};
}

Hash128 PrefixIndex::hash_of(std::optional<ContentId> parent, std::span<const TokenId> tokens,
                             const std::string& salt) const {
  LLMSRV_CHECK(static_cast<int>(tokens.size()) == block_size_);
  const Tag tag = parent ? Tag::kLaterBlock : Tag::kFirstBlock;
  message_.resize(sizeof(tag) + tokens.size_bytes() + (parent ? sizeof(*parent) : salt.size()));
  std::byte* end = put(message_.data(), &tag, sizeof(tag));
  end = put(end, tokens.data(), tokens.size_bytes());
  if (parent) {
    put(end, &*parent, sizeof(*parent));
  } else if (!salt.empty()) {
    put(end, salt.data(), salt.size());
  }
  const Hash128 hash = keyed_hash(key_, message_);
  return {hash.low & hash_mask_.low, hash.high & hash_mask_.high};
}

bool PrefixIndex::is_same(BlockId block, std::optional<ContentId> parent, std::span<const TokenId> tokens,
                          const std::string& salt) const {
  if (record(block).parent != parent) return false;
  const std::span<const TokenId> held = tokens_of(block);
  if (!std::equal(tokens.begin(), tokens.end(), held.begin(), held.end())) return false;
  if (parent) return true;
  const auto held_salt = salts_.find(block);
  return held_salt == salts_.end() ? salt.empty() : held_salt->second == salt;
}

std::span<TokenId> PrefixIndex::tokens_of(BlockId block) {
  const auto size = static_cast<std::size_t>(block_size_);
  return {tokens_.data() + static_cast<std::size_t>(block) * size, size};
}

std::span<const TokenId> PrefixIndex::tokens_of(BlockId block) const {
  const auto size = static_cast<std::size_t>(block_size_);
  return {tokens_.data() + static_cast<std::size_t>(block) * size, size};
}

}  // namespace llmsrv
