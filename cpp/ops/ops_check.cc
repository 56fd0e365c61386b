// The shape contracts of every operation, checked once for all backends. A violation is our own bug, never a request's.
#include <algorithm>

#include "cpp/base/check.h"
#include "cpp/ops/backend.h"

namespace llmsrv {
namespace {

bool is_matrix(const TensorView& view, int rows, int cols) {
  return view.dtype == DType::kF32 && view.rows == rows && view.cols == cols && view.row_stride >= cols &&
         (view.data != nullptr || rows == 0);
}

bool is_head_shape(const HeadShape& shape) {
  return shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads == 0 && shape.head_dim > 0 &&
         shape.head_dim % 2 == 0 && shape.head_dim <= kHeadDimMax;
}

bool is_kv_layer(const KvLayer& cache) {
  const bool known_block_size = cache.block_size == 8 || cache.block_size == 16 || cache.block_size == 32;
  return cache.data != nullptr && cache.blocks > 0 && known_block_size && cache.block_bytes > 0;
}

bool is_vector(std::span<const float> values, int size) { return values.size() == static_cast<std::size_t>(size); }

int blocks_for(int tokens, int block_size) { return (tokens + block_size - 1) / block_size; }

void check_range(const AttentionRange& range, int rows, const KvLayer& cache) {
  LLMSRV_CHECK(range.first_row >= 0 && range.row_count > 0 && range.row_count <= rows - range.first_row);
  LLMSRV_CHECK(range.context_len >= range.row_count && range.blocks != nullptr);
  for (int i = 0; i < blocks_for(range.context_len, cache.block_size); ++i) {
    LLMSRV_CHECK(range.blocks[i] >= 0 && range.blocks[i] < cache.blocks);
  }
}

}  // namespace

void Backend::embed(std::span<const TokenId> ids, const PackedMatrix& table, float scale, TensorView out) {
  LLMSRV_CHECK(is_matrix(out, static_cast<int>(ids.size()), table.cols()));
  for (const TokenId id : ids) LLMSRV_CHECK(id >= 0 && id < table.rows());
  if (out.rows > 0) do_embed(ids, table, scale, out);
}

void Backend::linear(TensorView in, const Prologue& prologue, std::span<const PackedMatrix> weights,
                     std::span<const float> bias, Accumulate mode, TensorView out) {
  LLMSRV_CHECK(!weights.empty());
  const int cols = weights.front().cols();
  int rows = 0;
  for (const PackedMatrix& weight : weights) {
    LLMSRV_CHECK(weight.rows() > 0 && weight.cols() == cols);
    rows += weight.rows();
  }
  if (const auto* norm = std::get_if<RmsNorm>(&prologue)) {
    LLMSRV_CHECK(is_vector(norm->weight, cols) && norm->eps >= 0);
  }
  const int in_cols = std::holds_alternative<GatedMul>(prologue) ? 2 * cols : cols;
  LLMSRV_CHECK(is_matrix(in, in.rows, in_cols) && is_matrix(out, in.rows, rows));
  LLMSRV_CHECK(bias.empty() || is_vector(bias, rows));
  if (in.rows > 0) do_linear(in, prologue, weights, bias, mode, out);
}

void Backend::add_rms_norm(TensorView in, const RmsNorm& norm, TensorView out) {
  const int cols = static_cast<int>(norm.weight.size());
  LLMSRV_CHECK(cols > 0 && norm.eps >= 0 && is_matrix(in, in.rows, cols) && is_matrix(out, in.rows, cols));
  if (in.rows > 0) do_add_rms_norm(in, norm, out);
}

void Backend::rope_and_store_kv(TensorView qkv, const HeadShape& shape, const std::optional<HeadNorms>& norms,
                                const RopeTable& rope, std::span<const std::int32_t> positions,
                                std::span<const KvSlot> slots, const KvLayer& cache) {
  LLMSRV_CHECK(is_head_shape(shape) && is_matrix(qkv, qkv.rows, shape.qkv_cols()));
  if (norms) {
    LLMSRV_CHECK(is_vector(norms->query, shape.head_dim) && is_vector(norms->key, shape.head_dim) && norms->eps >= 0);
  }
  LLMSRV_CHECK(rope.cos != nullptr && rope.sin != nullptr && is_kv_layer(cache));
  LLMSRV_CHECK(cache.block_bytes == kv_block_bytes(shape, cache.block_size, cache.dtype));
  LLMSRV_CHECK(positions.size() == static_cast<std::size_t>(qkv.rows) && slots.size() == positions.size());
  for (const std::int32_t position : positions) LLMSRV_CHECK(position >= 0 && position < rope.positions);
  for (const KvSlot& slot : slots) {
    LLMSRV_CHECK(slot.block >= 0 && slot.block < cache.blocks && slot.offset >= 0 && slot.offset < cache.block_size);
  }
  if (qkv.rows > 0) do_rope_and_store_kv(qkv, shape, norms, rope, positions, slots, cache);
}

void Backend::paged_attention(TensorView qkv, const HeadShape& shape, const KvLayer& cache,
                              std::span<const AttentionRange> ranges, const AttentionOptions& options, TensorView out) {
  LLMSRV_CHECK(is_head_shape(shape) && is_kv_layer(cache));
  LLMSRV_CHECK(is_matrix(qkv, qkv.rows, shape.qkv_cols()) && is_matrix(out, qkv.rows, shape.query_cols()));
  LLMSRV_CHECK(cache.block_bytes == kv_block_bytes(shape, cache.block_size, cache.dtype));
  LLMSRV_CHECK(options.scale > 0 && (!options.window || *options.window > 0));
  LLMSRV_CHECK(!options.soft_cap || *options.soft_cap > 0);
  for (const AttentionRange& range : ranges) check_range(range, qkv.rows, cache);
  if (!ranges.empty()) do_paged_attention(qkv, shape, cache, ranges, options, out);
}

void Backend::move_blocks(std::span<const KvLayer> from, std::span<const KvLayer> to,
                          std::span<const BlockMove> moves) {
  LLMSRV_CHECK(from.size() == to.size());
  if (from.empty() || moves.empty()) return;
  int from_blocks = from.front().blocks;
  int to_blocks = to.front().blocks;
  for (std::size_t layer = 0; layer < from.size(); ++layer) {
    LLMSRV_CHECK(is_kv_layer(from[layer]) && is_kv_layer(to[layer]));
    LLMSRV_CHECK(from[layer].block_bytes == to[layer].block_bytes);
    from_blocks = std::min(from_blocks, from[layer].blocks);
    to_blocks = std::min(to_blocks, to[layer].blocks);
  }
  for (const BlockMove& move : moves) {
    LLMSRV_CHECK(move.from >= 0 && move.from < from_blocks && move.to >= 0 && move.to < to_blocks);
  }
  do_move_blocks(from, to, moves);
}

}  // namespace llmsrv
