// Finds blocks by what they hold: the tokens from the start of a sequence up to the block's end, and its salt.
//
// A full block is indexed under a keyed hash of (the content before it, its token ids, its salt when it is the first).
// On a hit the ids, the parent and the salt are compared as well: a collision of hashes is a miss, never a wrong text.
// The parent is named by a ContentId, which is never used twice; so comparing one block proves the whole run before it.
//
// A second chain, under the keyed hash of what comes before a block and its first token alone, finds a block that
// begins as wanted.
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
#include "cpp/sched/block_rings.h"

namespace llmsrv {

// Names a run of tokens from the start of a sequence, by the block that ends it.
using ContentId = std::uint64_t;

// A block whose first `token_count` tokens are those asked for.
struct PartialMatch {
  BlockId block;
  int token_count;
};

class PrefixIndex {
 public:
  // How many blocks find_partial() compares, and how many it passes on the way.
  static constexpr int kPartialCandidatesMax = 16;
  static constexpr int kPartialStepsMax = 64;

  // `hash_bits` < 128 shortens the hash, to test what collisions do. REQUIRES: 1 <= hash_bits <= 128
  PrefixIndex(int blocks, int block_size, int hash_bits = 128, const HashKey& key = random_hash_key());

  // The block that holds `tokens` right after the content `parent` (none: at the start of a sequence with this salt).
  // REQUIRES: tokens.size() == block_size
  std::optional<BlockId> find(std::optional<ContentId> parent, std::span<const TokenId> tokens,
                              const std::string& salt) const;

  // A block right after `parent` (or at the start, as above) that shares at least its first token with `tokens`. Of the
  // kPartialCandidatesMax indexed last the one that shares most leading tokens; of equal ones the one indexed last.
  // Blocks with another beginning that fell into the same chain may hide some: a miss, never a wrong block.
  // REQUIRES: 1 <= tokens.size() <= block_size
  std::optional<PartialMatch> find_partial(std::optional<ContentId> parent, std::span<const TokenId> tokens,
                                           const std::string& salt) const;

  // Indexes `block`, and returns the content's id. When another block holds the same content already, or one with the
  // same hash, `block` is left out; the id is then the other block's, or nothing. REQUIRES: `block` is not indexed,
  // tokens.size() == block_size
  std::optional<ContentId> insert(std::optional<ContentId> parent, std::span<const TokenId> tokens,
                                  const std::string& salt, BlockId block);

  bool holds(BlockId block) const { return record(block).content.has_value(); }
  // REQUIRES: holds(block)
  ContentId content(BlockId block) const { return *record(block).content; }
  // REQUIRES: holds(block)
  void erase(BlockId block);

  int size() const { return size_; }
  // The memory it owns, but for the salts of first blocks.
  std::size_t bytes() const;

 private:
  struct Record {
    std::optional<ContentId> content;  // set while the block is indexed
    std::optional<ContentId> parent;
    Hash128 hash;
  };

  Hash128 hash_of_block(std::optional<ContentId> parent, std::span<const TokenId> tokens,
                        const std::string& salt) const;
  Hash128 hash_of_start(std::optional<ContentId> parent, TokenId first_token, const std::string& salt) const;
  Hash128 hash_of(std::uint64_t tag, std::optional<ContentId> parent, std::span<const TokenId> tokens,
                  const std::string& salt) const;
  int chain_of(const Hash128& hash) const { return static_cast<int>(hash.low & (chain_count_ - 1)); }
  std::optional<BlockId> block_with(const Hash128& hash) const;
  bool comes_after(BlockId block, std::optional<ContentId> parent, const std::string& salt) const;
  bool is_same(BlockId block, std::optional<ContentId> parent, std::span<const TokenId> tokens,
               const std::string& salt) const;
  const Record& record(BlockId block) const { return records_[static_cast<std::size_t>(block)]; }
  std::span<TokenId> tokens_of(BlockId block);
  std::span<const TokenId> tokens_of(BlockId block) const;

  const int block_size_;
  const Hash128 hash_mask_;
  const HashKey key_;
  const std::uint64_t chain_count_;                 // a power of two, at least one chain for each block
  std::vector<Record> records_;                     // by block
  std::vector<TokenId> tokens_;                     // [blocks, block_size]
  BlockRings by_block_;                             // under hash_of_block
  BlockRings by_start_;                             // under hash_of_start
  std::unordered_map<BlockId, std::string> salts_;  // of first blocks that have one
  int size_ = 0;
  ContentId next_content_ = 1;
  mutable std::vector<std::byte> message_;  // scratch of hash_of
};

}  // namespace llmsrv
