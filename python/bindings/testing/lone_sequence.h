// One sequence over a decoder of its own, without an engine; its blocks lie in reverse order, which must not matter.
#pragma once

#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "cpp/model/decoder.h"

namespace llmsrv::testing {

class LoneSequence {
 public:
  static constexpr int kBlockSize = 16;

  // `chunk`: the most tokens of a step.
  LoneSequence(const Weights& weights, int context_len, int chunk, DType kv_dtype, std::unique_ptr<Backend> backend)
      : backend_(std::move(backend)),
        table_(static_cast<std::size_t>((context_len + kBlockSize - 1) / kBlockSize)),
        cache_(make_cache(weights.spec(), kv_dtype, MemoryPlace::kDevice)),
        swap_(make_cache(weights.spec(), kv_dtype, MemoryPlace::kHost)),
        decoder_(weights, *backend_, cache_, {chunk, 1, chunk, context_len}) {
    std::iota(table_.rbegin(), table_.rend(), 0);
  }

  // Computes the next tokens.
  void forward(std::span<const TokenId> tokens) {
    inputs_.tokens.assign(tokens.begin(), tokens.end());
    inputs_.positions.clear();
    inputs_.slots.clear();
    inputs_.ranges.clear();
    inputs_.block_size = kBlockSize;
    rows_.clear();
    const int count = static_cast<int>(tokens.size());
    for (int row = 0; row < count; ++row) {
      const int position = length_ + row;
      inputs_.positions.push_back(position);
      inputs_.slots.push_back({table_[static_cast<std::size_t>(position / kBlockSize)], position % kBlockSize});
      rows_.push_back(row);
    }
    length_ += count;
    inputs_.ranges.push_back({0, count, length_, table_.data()});
    decoder_.forward(inputs_);
  }

  // Logits of the last step's tokens. [tokens, vocab]; valid until the next call.
  TensorView logits() { return backend_->to_host(decoder_.logits(rows_)); }
  // Draws from these: row i by rows[i].
  std::span<const Sampled> draw(std::span<const SampleRow> rows) {
    backend_->draw(decoder_.logits(rows_), rows);
    return backend_->drawn();
  }

  // Moves all blocks to the swap pool and back, each to the place of another one; nothing is left where they were.
  void swap_out_and_in() {
    const auto count = static_cast<BlockId>(table_.size());
    std::vector<BlockMove> out;
    std::vector<BlockMove> in;
    for (BlockId id = 0; id < count; ++id) {
      out.push_back({id, count - 1 - id});
      in.push_back({count - 1 - id, (id + 1) % count});
    }
    backend_->move_blocks(cache_.layers(), swap_.layers(), out);
    backend_->move_blocks(swap_.layers(), cache_.layers(), in);
    for (BlockId& id : table_) id = (id + 1) % count;
  }

 private:
  KvCache make_cache(const ModelSpec& spec, DType dtype, MemoryPlace place) const {
    const KvCacheShape shape{spec.num_layers, static_cast<int>(table_.size()), kBlockSize, dtype,
                             backend_->kv_block_bytes(spec.heads(), kBlockSize, dtype)};
    return KvCache(shape, backend_->allocate(shape.bytes(), place));
  }

  std::unique_ptr<Backend> backend_;
  std::vector<BlockId> table_;
  KvCache cache_;
  KvCache swap_;
  Decoder decoder_;
  StepInputs inputs_;
  std::vector<int> rows_;
  int length_ = 0;
};

}  // namespace llmsrv::testing
