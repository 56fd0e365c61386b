#include "cpp/sched/prefix_index.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cpp/base/check.h"

namespace llmsrv {
namespace {

// Tags keep apart what is hashed: a first block with a salt from a later block whose parent has the same bytes, and
// whole blocks from starts.
enum Tag : std::uint64_t { kFirstBlock = 1, kLaterBlock = 2, kStartOfFirst = 3, kStartOfLater = 4 };

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
      chain_count_(std::bit_ceil(static_cast<std::uint64_t>(blocks))),
      records_(static_cast<std::size_t>(blocks)),
      tokens_(static_cast<std::size_t>(blocks) * static_cast<std::size_t>(block_size)),
      by_block_(blocks, static_cast<int>(chain_count_)),
      by_start_(blocks, static_cast<int>(chain_count_)) {
  LLMSRV_CHECK(hash_bits >= 1 && hash_bits <= 128);
}

std::optional<BlockId> PrefixIndex::find(std::optional<ContentId> parent, std::span<const TokenId> tokens,
                                         const std::string& salt) const {
  const std::optional<BlockId> found = block_with(hash_of_block(parent, tokens, salt));
  if (!found || !is_same(*found, parent, tokens, salt)) return std::nullopt;
  return found;
}

std::optional<PartialMatch> PrefixIndex::find_partial(std::optional<ContentId> parent, std::span<const TokenId> tokens,
                                                      const std::string& salt) const {
  LLMSRV_CHECK(!tokens.empty() && static_cast<int>(tokens.size()) <= block_size_);
  std::optional<PartialMatch> best;
  int candidates = 0;
  int steps = 0;
  std::optional<BlockId> block = by_start_.first(chain_of(hash_of_start(parent, tokens.front(), salt)));
  for (; block && candidates < kPartialCandidatesMax && steps < kPartialStepsMax; block = by_start_.after(*block)) {
    ++steps;
    if (tokens_of(*block).front() != tokens.front() || !comes_after(*block, parent, salt)) continue;
    ++candidates;
    const auto differs = std::mismatch(tokens.begin(), tokens.end(), tokens_of(*block).begin()).first;
    const auto token_count = static_cast<int>(differs - tokens.begin());
    if (!best || token_count > best->token_count) best = {*block, token_count};
  }
  return best;
}

std::optional<ContentId> PrefixIndex::insert(std::optional<ContentId> parent, std::span<const TokenId> tokens,
                                             const std::string& salt, BlockId block) {
  LLMSRV_CHECK(!holds(block));
  const Hash128 hash = hash_of_block(parent, tokens, salt);
  if (const std::optional<BlockId> other = block_with(hash)) {
    if (!is_same(*other, parent, tokens, salt)) return std::nullopt;
    return content(*other);
  }
  records_[static_cast<std::size_t>(block)] = {next_content_++, parent, hash};
  std::copy(tokens.begin(), tokens.end(), tokens_of(block).begin());
  if (!parent && !salt.empty()) salts_[block] = salt;
  by_block_.push_front(chain_of(hash), block);
  by_start_.push_front(chain_of(hash_of_start(parent, tokens.front(), salt)), block);
  ++size_;
  return content(block);
}

void PrefixIndex::erase(BlockId block) {
  LLMSRV_CHECK(holds(block));
  by_block_.remove(block);
  by_start_.remove(block);
  salts_.erase(block);
  records_[static_cast<std::size_t>(block)] = {};
  --size_;
}

std::size_t PrefixIndex::bytes() const {
  return records_.capacity() * sizeof(Record) + tokens_.capacity() * sizeof(TokenId) + by_block_.bytes() +
         by_start_.bytes() + message_.capacity();
}

Hash128 PrefixIndex::hash_of_block(std::optional<ContentId> parent, std::span<const TokenId> tokens,
                                   const std::string& salt) const {
  LLMSRV_CHECK(static_cast<int>(tokens.size()) == block_size_);
  return hash_of(parent ? kLaterBlock : kFirstBlock, parent, tokens, salt);
}

Hash128 PrefixIndex::hash_of_start(std::optional<ContentId> parent, TokenId first_token,
                                   const std::string& salt) const {
  return hash_of(parent ? kStartOfLater : kStartOfFirst, parent, {&first_token, 1}, salt);
}

Hash128 PrefixIndex::hash_of(std::uint64_t tag, std::optional<ContentId> parent, std::span<const TokenId> tokens,
                             const std::string& salt) const {
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

std::optional<BlockId> PrefixIndex::block_with(const Hash128& hash) const {
  std::optional<BlockId> block = by_block_.first(chain_of(hash));
  while (block && record(*block).hash != hash) block = by_block_.after(*block);
  return block;
}

bool PrefixIndex::comes_after(BlockId block, std::optional<ContentId> parent, const std::string& salt) const {
  if (record(block).parent != parent) return false;
  if (parent) return true;
  const auto held_salt = salts_.find(block);
  return held_salt == salts_.end() ? salt.empty() : held_salt->second == salt;
}

bool PrefixIndex::is_same(BlockId block, std::optional<ContentId> parent, std::span<const TokenId> tokens,
                          const std::string& salt) const {
  const std::span<const TokenId> held = tokens_of(block);
  return std::equal(tokens.begin(), tokens.end(), held.begin(), held.end()) && comes_after(block, parent, salt);
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
