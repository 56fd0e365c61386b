// Finds blocks by what they hold: the tokens from the start of a sequence up to the block's end, and its salt.
//
// A full block is indexed under a keyed hash of (the content before it, its token ids, its salt when it is the first).
// On a hit the ids, the parent and the salt are compared as well: a collision of hashes is a miss, never a wrong text.
// The parent is named by a ContentId, which is never used twice; so comparing one block proves the whole run before it.
//
// Thread rule: engine thread only. Owns no block: the pool says which block may be forgotten, and when.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cpp/base/keyed_hash.h"
#include "cpp/base/types.h"

namespace llmsrv {

// Names a run of tokens from the start of a sequence, by the block that ends it.
using ContentId = std::uint64_t;

class PrefixIndex {
 public:
  // `hash_bits` < 128 shortens the hash, to test what collisions do. REQUIRES: 1 <= hash_bits <= 128
  PrefixIndex(int blocks, int block_size, int hash_bits = 128, const HashKey& key = random_hash_key());

  // The block that holds `tokens` right after the content `parent` (none: at the start of a sequence with this salt).
  // REQUIRES: tokens.size() == block_size
  std::optional<BlockId> find(std::optional<ContentId> parent, std::span<const TokenId> tokens,
                              const std::string& salt) const;

  // Indexes `block`, and returns the content's id. When another block holds the same content already, or one with the
  // same hash, `block` is left out; the id is then the other block's, or nothing. REQUIRES: `block` is not indexed
  std::optional<ContentId> insert(std::optional<ContentId> parent, std::span<const TokenId> tokens,
                                  const std::string& salt, BlockId block);

  bool holds(BlockId block) const { return record(block).content.has_value(); }
  // REQUIRES: holds(block)
  ContentId content(BlockId block) const { return *record(block).content; }
  // REQUIRES: holds(block)
  void erase(BlockId block);

  int size() const { return static_cast<int>(by_hash_.size()); }

 private:
  struct Record {
    std::optional<ContentId> content;  // set while the block is indexed
    std::optional<ContentId> parent;
    Hash128 hash;
  };
  struct HashBits {
    std::size_t operator()(const Hash128& hash) const { return hash.low; }  // it is random already
  };

  Hash128 hash_of(std::optional<ContentId> parent, std::span<const TokenId> tokens, const std::string& salt) const;
  bool is_same(BlockId block, std::optional<ContentId> parent, std::span<const TokenId> tokens,
               const std::string& salt) const;
  const Record& record(BlockId block) const { return records_[static_cast<std::size_t>(block)]; }
  std::span<TokenId> tokens_of(BlockId block);
  std::span<const TokenId> tokens_of(BlockId block) const;

  const int block_size_;
  const Hash128 hash_mask_;
  const HashKey key_;
  std::vector<Record> records_;                     // by block
  std::vector<TokenId> tokens_;                     // [blocks, block_size]
  std::unordered_map<BlockId, std::string> salts_;  // of first blocks that have one
  std::unordered_map<Hash128, BlockId, HashBits> by_hash_;
  ContentId next_content_ = 1;
  mutable std::vector<std::byte> message_;  // scratch of hash_of
};

}  // namespace llmsrv
