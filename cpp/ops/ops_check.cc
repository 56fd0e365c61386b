// The shape contracts of every operation, checked once for all backends. A violation is our own bug, never a request's.
#include <algorithm>

#include "cpp/base/check.h"
#include "cpp/ops/backend.h"

namespace llmsrv {
namespace {

bool has_shape(const TensorView& view, int rows, int cols) {
  return view.rows == rows && view.cols == cols && view.row_stride >= cols && (view.data != nullptr || rows == 0);
}

// Of floats: the residual stream, logits.
bool is_matrix(const TensorView& view, int rows, int cols) {
  return view.dtype == DType::kF32 && has_shape(view, rows, cols);
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

// Returns the end of the blocks that it names.
BlockId check_range(const AttentionRange& range, int rows, int block_size) {
  LLMSRV_CHECK(range.first_row >= 0 && range.row_count > 0 && range.row_count <= rows - range.first_row);
  LLMSRV_CHECK(range.context_len >= range.row_count && range.blocks != nullptr && block_size > 0);
  BlockId end = 0;
  for (int i = 0; i < blocks_for(range.context_len, block_size); ++i) {
    LLMSRV_CHECK(range.blocks[i] >= 0);
    end = std::max(end, range.blocks[i] + 1);
  }
  return end;
}

}  // namespace

void Backend::run_step(const StepInputs& inputs, const StepBody& body) {
  const std::size_t tokens = inputs.tokens.size();
  LLMSRV_CHECK(inputs.positions.empty() || inputs.positions.size() == tokens);
  LLMSRV_CHECK(inputs.slots.empty() || inputs.slots.size() == tokens);
  ends_ = {};
  for (const TokenId token : inputs.tokens) {
    LLMSRV_CHECK(token >= 0);
    ends_.token = std::max(ends_.token, token + 1);
  }
  for (const DrawnToken& drawn : inputs.from_draw) {
    LLMSRV_CHECK(works_behind() && drawn.draw_row >= 0 && drawn.draw_row < drawn_rows_);
    LLMSRV_CHECK(drawn.row >= 0 && drawn.row < static_cast<int>(tokens));
  }
  for (const std::int32_t position : inputs.positions) {
    LLMSRV_CHECK(position >= 0);
    ends_.position = std::max(ends_.position, position + 1);
  }
  for (const KvSlot& slot : inputs.slots) {
    LLMSRV_CHECK(slot.block >= 0 && slot.offset >= 0 && slot.offset < inputs.block_size);
    ends_.block = std::max(ends_.block, slot.block + 1);
  }
  for (const AttentionRange& range : inputs.ranges) {
    ends_.block = std::max(ends_.block, check_range(range, static_cast<int>(tokens), inputs.block_size));
  }
  step_ = &inputs;
  if (tokens > 0) do_run_step(inputs, body);
  step_ = nullptr;
}

const StepInputs& Backend::step() const {
  LLMSRV_CHECK(step_ != nullptr);
  return *step_;
}

void Backend::run_body(const StepBody& body, int rows) {
  LLMSRV_CHECK(rows >= static_cast<int>(step().tokens.size()));
  step_rows_ = rows;
  body(rows);
}

void Backend::embed(const PackedMatrix& table, float scale, TensorView out) {
  LLMSRV_CHECK(is_matrix(out, step_rows_, table.cols()) && !step().tokens.empty());
  LLMSRV_CHECK(ends_.token <= table.rows());
  do_embed(table, scale, out);
}

void Backend::gather_rows(TensorView in, std::span<const int> rows, TensorView out) {
  LLMSRV_CHECK(is_matrix(in, in.rows, out.cols) && is_matrix(out, static_cast<int>(rows.size()), in.cols));
  for (const int row : rows) LLMSRV_CHECK(row >= 0 && row < in.rows);
  if (out.rows > 0) do_gather_rows(in, rows, out);
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
  LLMSRV_CHECK(has_shape(in, in.rows, in_cols) && has_shape(out, in.rows, rows));
  LLMSRV_CHECK(bias.empty() || is_vector(bias, rows));
  if (in.rows > 0) do_linear(in, prologue, weights, bias, mode, out);
}

void Backend::add_rms_norm(TensorView in, const RmsNorm& norm, TensorView out) {
  const int cols = static_cast<int>(norm.weight.size());
  LLMSRV_CHECK(cols > 0 && norm.eps >= 0 && is_matrix(in, in.rows, cols) && is_matrix(out, in.rows, cols));
  if (in.rows > 0) do_add_rms_norm(in, norm, out);
}

void Backend::rope_and_store_kv(TensorView qkv, const HeadShape& shape, const std::optional<HeadNorms>& norms,
                                const RopeTable& rope, const KvLayer& cache) {
  LLMSRV_CHECK(is_head_shape(shape) && has_shape(qkv, step_rows_, shape.qkv_cols()) && qkv.dtype == inner_dtype());
  if (norms) {
    LLMSRV_CHECK(is_vector(norms->query, shape.head_dim) && is_vector(norms->key, shape.head_dim) && norms->eps >= 0);
  }
  LLMSRV_CHECK(rope.cos != nullptr && rope.sin != nullptr && is_kv_layer(cache));
  LLMSRV_CHECK(cache.block_bytes == kv_block_bytes(shape, cache.block_size, cache.dtype));
  LLMSRV_CHECK(!step().positions.empty() && !step().slots.empty());
  LLMSRV_CHECK(ends_.position <= rope.positions && ends_.block <= cache.blocks);
  LLMSRV_CHECK(step().block_size == cache.block_size);
  do_rope_and_store_kv(qkv, shape, norms, rope, cache);
}

void Backend::paged_attention(TensorView qkv, const HeadShape& shape, const KvLayer& cache,
                              const AttentionOptions& options, TensorView out) {
  LLMSRV_CHECK(is_head_shape(shape) && is_kv_layer(cache));
  LLMSRV_CHECK(has_shape(qkv, step_rows_, shape.qkv_cols()) && has_shape(out, qkv.rows, shape.query_cols()));
  LLMSRV_CHECK(qkv.dtype == inner_dtype() && out.dtype == inner_dtype());
  LLMSRV_CHECK(cache.block_bytes == kv_block_bytes(shape, cache.block_size, cache.dtype));
  LLMSRV_CHECK(options.scale > 0 && (!options.window || *options.window > 0));
  LLMSRV_CHECK(!options.soft_cap || *options.soft_cap > 0);
  LLMSRV_CHECK(step().ranges.empty() || (ends_.block <= cache.blocks && step().block_size == cache.block_size));
  if (!step().ranges.empty()) do_paged_attention(qkv, shape, cache, options, out);
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

// Ids are not looked at here: prompts and parameters were validated, outputs were drawn, and there may be many.
void Backend::draw(TensorView logits, std::span<const SampleRow> rows) {
  LLMSRV_CHECK(is_matrix(logits, static_cast<int>(rows.size()), logits.cols) && logits.cols > 0);
  LLMSRV_CHECK(draws_left_ < kDrawsMost);
  for (const SampleRow& row : rows) {
    LLMSRV_CHECK(row.params != nullptr && row.top_logprobs.value_or(0) >= 0);
    LLMSRV_CHECK(!row.pending || (works_behind() && *row.pending >= 0 && *row.pending < drawn_rows_));
  }
  do_draw(logits, rows);
  ++draws_left_;
  drawn_rows_ = static_cast<int>(rows.size());
}

std::span<const Sampled> Backend::drawn() {
  LLMSRV_CHECK(draws_left_ > 0);
  --draws_left_;
  return do_drawn();
}

}  // namespace llmsrv
