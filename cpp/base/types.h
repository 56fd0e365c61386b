// Plain identifiers shared by every folder.
#pragma once

#include <cstdint>

namespace llmsrv {

using TokenId = std::int32_t;      // index into the vocabulary
using BlockId = std::int32_t;      // index into the KV block pool
using SequenceId = std::uint64_t;  // one generated sequence; unique for the life of an engine
using RequestKey = std::uint64_t;  // one accepted request; unique for the life of an engine

// What a block holds goes to another block, of the same memory or of another.
struct BlockMove {
  BlockId from = 0;
  BlockId to = 0;

  bool operator==(const BlockMove&) const = default;
};

}  // namespace llmsrv
