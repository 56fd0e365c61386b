#include "cpp/cpu/paged_attention.h"

#include <algorithm>

namespace llmsrv {

using cpu::AttentionItem;
using cpu::AttentionTask;
using cpu::KernelTable;

static_assert(cpu::kMostHeadDim == kHeadDimMax);

PagedAttention::PagedAttention(ThreadPool& pool, const KernelTable& kernels)
    : pool_(pool), kernels_(kernels), shared_(static_cast<std::size_t>(pool.size())) {}

std::size_t PagedAttention::partial_bytes(const StepLimits& limits) const {
  const std::size_t floats = kernels_.attention_partial_floats(limits.context_len, limits.shape.head_dim);
  return (floats * sizeof(float) + 63) / 64 * 64;
}

std::size_t PagedAttention::workspace_bytes(const StepLimits& limits) const {
  return partial_bytes(limits) * 2 * static_cast<std::size_t>(pool_.size());
}

void PagedAttention::reserve(const StepLimits& limits) {
  partial_bytes_ = partial_bytes(limits);
  partials_ = AlignedBuffer(workspace_bytes(limits));
}

template <typename Visit>
void PagedAttention::for_pieces(const AttentionTask& task, int kv_heads, std::span<const AttentionRange> ranges,
                                const Visit& visit) const {
  const int segment = kernels_.segment_positions;
  for (const AttentionRange& range : ranges) {
    const int queries = range.row_count * task.group;
    const int rows_begin = range.context_len - range.row_count;
    for (int kv_head = 0; kv_head < kv_heads; ++kv_head) {
      for (int first = 0; first < queries; first += kernels_.query_tile) {
        const int count = std::min(kernels_.query_tile, queries - first);
        const int begin = std::max(rows_begin + first / task.group + 1 - task.window, 0);
        const int end = rows_begin + (first + count - 1) / task.group + 1;
        const AttentionItem item{
            range.first_row, range.row_count, range.context_len, range.blocks, kv_head, first, count};
        visit(Piece{item, begin / segment, (end - 1) / segment + 1, begin,
                    static_cast<std::int64_t>(end - begin) * count});
      }
    }
  }
}

int PagedAttention::segment_at(const Piece& piece, std::int64_t cost) const {
  if (cost <= 0) return piece.first_segment;
  if (cost >= piece.cost) return piece.end_segment;
  const int position = piece.first_position + static_cast<int>(cost / piece.item.query_count);
  const int nearest = (position + kernels_.segment_positions / 2) / kernels_.segment_positions;
  return std::clamp(nearest, piece.first_segment, piece.end_segment);
}

void PagedAttention::run(const AttentionTask& task, KernelTable::Attention* kernel, int kv_heads,
                         std::span<const AttentionRange> ranges) {
  std::int64_t total_cost = 0;
  for_pieces(task, kv_heads, ranges, [&](const Piece& piece) { total_cost += piece.cost; });
  const auto share_begin = [&](int member) { return total_cost * member / pool_.size(); };
  pool_.run([&](int member) {
    const std::int64_t begin = share_begin(member);
    const std::int64_t end = share_begin(member + 1);
    std::int64_t cost_before = 0;
    for_pieces(task, kv_heads, ranges, [&](const Piece& piece) {
      const int first_segment = segment_at(piece, begin - cost_before);
      const int end_segment = segment_at(piece, end - cost_before);
      if (first_segment == piece.first_segment && end_segment == piece.end_segment) {
        kernel(task, piece.item, first_segment, end_segment, own_partials(member));
        kernels_.finish_attention(task, piece.item, own_partials(member));
      } else if (first_segment < end_segment) {
        int owner = member;  // of the item's first segment; its share ends within this item, so it shares no other
        while (segment_at(piece, share_begin(owner) - cost_before) > piece.first_segment) --owner;
        if (owner == member) shared_[static_cast<std::size_t>(member)] = piece.item;
        kernel(task, piece.item, first_segment, end_segment, shared_partials(owner));
      }
      cost_before += piece.cost;
    });
  });
  for (int member = 0; member < pool_.size(); ++member) {
    std::optional<AttentionItem>& item = shared_[static_cast<std::size_t>(member)];
    if (item) kernels_.finish_attention(task, *item, shared_partials(member));
    item.reset();
  }
}

}  // namespace llmsrv
