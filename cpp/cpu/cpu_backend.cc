#include "cpp/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "cpp/base/aligned_buffer.h"
#include "cpp/base/check.h"
#include "cpp/cpu/int8_linear.h"
#include "cpp/cpu/isa.h"
#include "cpp/cpu/kernels.h"
#include "cpp/cpu/paged_attention.h"
#include "cpp/cpu/row_source.h"
#include "cpp/sample/sampler.h"

namespace llmsrv {
namespace {

using cpu::AttentionTask;
using cpu::KernelTable;
using cpu::LinearTask;

// Below this many values an operation on rows is over sooner than a second thread could help.
constexpr std::int64_t kAloneValues = 8192;

class CpuBackend final : public Backend {
 public:
  CpuBackend(ThreadPool& pool, CpuIsa isa)
      : pool_(pool),
        isa_(std::move(isa)),
        kernels_(*isa_.kernels),
        attention_(pool, kernels_),
        int8_linear_(pool, *isa_.int8_kernels) {}

  std::string description() const override {
    const int threads = pool_.size();
    return "cpu (" + isa_.name + ", " + std::to_string(threads) + (threads == 1 ? " thread)" : " threads)");
  }

  std::size_t workspace_bytes(const StepLimits& limits) const override {
    return scratch_bytes(limits) * static_cast<std::size_t>(pool_.size()) + rows_bytes(limits) +
           attention_.workspace_bytes(limits) + int8_linear_.workspace_bytes(limits.input_cols) +
           Sampler::workspace_bytes(limits.result_cols, pool_.size());
  }

  void reserve(const StepLimits& limits) override {
    limits_ = limits;
    scratch_ = AlignedBuffer(scratch_bytes(limits) * static_cast<std::size_t>(pool_.size()));
    rows_ = AlignedBuffer(rows_bytes(limits));
    attention_.reserve(limits);
    int8_linear_.reserve(limits.input_cols);
    sampler_.emplace(limits.result_cols, limits.result_rows, pool_);
  }

  std::size_t kv_block_bytes(const HeadShape& shape, int block_size, DType dtype) const override {
    return static_cast<std::size_t>(shape.kv_heads) * kv_head_bytes(shape, block_size, dtype);
  }

  // Rows are whole cache lines, so that two threads never write one line, and an odd number of them: with a power of
  // two the same columns of all rows would fall on a few places of a cache.
  int row_stride(int cols) const override { return ((cols + 15) / 16 | 1) * 16; }

 private:
  void do_embed(const PackedMatrix& table, float scale, TensorView out) override {
    const std::vector<TokenId>& tokens = step().tokens;
    for_rows(out.rows, out.cols, [&](int t) {
      float* row = out.f32_row(t);
      table.unpack_row(tokens[static_cast<std::size_t>(t)], row);
      if (scale != 1.0f) std::transform(row, row + out.cols, row, [scale](float value) { return scale * value; });
    });
  }

  void do_gather_rows(TensorView in, std::span<const int> rows, TensorView out) override {
    for (int i = 0; i < out.rows; ++i) {
      const float* row = in.f32_row(rows[static_cast<std::size_t>(i)]);
      std::memcpy(out.f32_row(i), row, static_cast<std::size_t>(out.cols) * sizeof(float));
    }
  }

  void do_linear(TensorView in, const Prologue& prologue, std::span<const PackedMatrix> weights,
                 std::span<const float> bias, Accumulate mode, TensorView out) override {
    const RowSource rows(kernels_, in, prologue);
    const auto quantized = [](const PackedMatrix& weight) { return is_quantized(weight.format()); };
    if (std::any_of(weights.begin(), weights.end(), quantized)) {
      int8_linear_.run(rows, weights, bias, mode == Accumulate::kAdd, out);
    }
    if (std::all_of(weights.begin(), weights.end(), quantized)) return;
    const TensorView ready = made(rows);
    int first_row = 0;
    for (const PackedMatrix& weight : weights) {
      const auto part_bias = bias.empty() ? bias : bias.subspan(static_cast<std::size_t>(first_row));
      if (!quantized(weight)) plain_linear(ready, weight, part_bias, mode, out.slice_cols(first_row, weight.rows()));
      first_row += weight.rows();
    }
  }

  void do_add_rms_norm(TensorView in, const RmsNorm& norm, TensorView out) override {
    for_rows(in.rows, in.cols, [&](int t) {
      kernels_.add_rms_norm(in.f32_row(t), norm.weight.data(), in.cols, norm.eps, out.f32_row(t));
    });
  }

  void do_rope_and_store_kv(TensorView qkv, const HeadShape& shape, const std::optional<HeadNorms>& norms,
                            const RopeTable& rope, const KvLayer& cache) override {
    const std::vector<std::int32_t>& positions = step().positions;
    const std::vector<KvSlot>& slots = step().slots;
    const std::size_t head_bytes = kv_head_bytes(shape, cache.block_size, cache.dtype);
    KernelTable::StoreKv* store = kv_kernels(cache.dtype).store;
    for_rows(qkv.rows, qkv.cols, [&](int t) {
      const auto row = static_cast<std::size_t>(t);
      const std::ptrdiff_t angles = static_cast<std::ptrdiff_t>(positions[row]) * (shape.head_dim / 2);
      float* queries = qkv.f32_row(t);
      for (int head = 0; head < shape.heads + shape.kv_heads; ++head) {  // keys follow the queries
        float* at = queries + head * shape.head_dim;
        if (norms) {
          const std::span<const float> weight = head < shape.heads ? norms->query : norms->key;
          kernels_.rms_norm(at, weight.data(), shape.head_dim, norms->eps, at);
        }
        kernels_.rotate(at, rope.cos + angles, rope.sin + angles, shape.head_dim);
      }
      const float* keys = queries + shape.query_cols();
      const float* values = keys + shape.kv_cols();
      std::byte* block = cache.data + static_cast<std::size_t>(slots[row].block) * cache.block_bytes;
      for (int head = 0; head < shape.kv_heads; ++head) {
        const int column = head * shape.head_dim;
        store(keys + column, values + column, shape.head_dim, cache.block_size, slots[row].offset,
              reinterpret_cast<std::uint8_t*>(block + static_cast<std::size_t>(head) * head_bytes));
      }
    });
  }

  void do_paged_attention(TensorView qkv, const HeadShape& shape, const KvLayer& cache, const AttentionOptions& options,
                          TensorView out) override {
    const std::vector<AttentionRange>& ranges = step().ranges;
    LLMSRV_CHECK(shape.head_dim <= limits_.shape.head_dim);
    for (const AttentionRange& range : ranges) LLMSRV_CHECK(range.context_len <= limits_.context_len);
    const AttentionTask task{
        .queries = qkv.f32_row(0),
        .query_stride = qkv.row_stride,
        .group = shape.heads / shape.kv_heads,
        .head_dim = shape.head_dim,
        .cache = reinterpret_cast<const std::uint8_t*>(cache.data),
        .block_bytes = cache.block_bytes,
        .head_bytes = kv_head_bytes(shape, cache.block_size, cache.dtype),
        .block_size = cache.block_size,
        .window = std::min(options.window.value_or(limits_.context_len), limits_.context_len),
        .scale = options.scale,
        .soft_cap = options.soft_cap ? &*options.soft_cap : nullptr,
        .out = out.f32_row(0),
        .out_stride = out.row_stride,
    };
    attention_.run(task, kv_kernels(cache.dtype).attention, shape.kv_heads, ranges);
  }

  void do_move_blocks(std::span<const KvLayer> from, std::span<const KvLayer> to,
                      std::span<const BlockMove> moves) override {
    pool_.run([&](int member) {
      const ThreadPool::Range layers = pool_.share(static_cast<int>(from.size()), member);
      for (int layer = layers.begin; layer < layers.end; ++layer) {
        const KvLayer& source = from[static_cast<std::size_t>(layer)];
        const KvLayer& target = to[static_cast<std::size_t>(layer)];
        for (const BlockMove& move : moves) {
          const std::byte* block = source.data + source.block_bytes * static_cast<std::size_t>(move.from);
          std::byte* place = target.data + target.block_bytes * static_cast<std::size_t>(move.to);
          if (place != block) std::memcpy(place, block, source.block_bytes);
        }
      }
    });
  }

  void do_draw(TensorView logits, std::span<const SampleRow> rows) override { sampler_->sample(logits, rows); }
  std::span<const Sampled> do_drawn() override { return sampler_->take(); }

  // All rows, in memory.
  TensorView made(const RowSource& rows) {
    if (rows.is_ready()) return rows.make(0, rows.rows(), nullptr);
    LLMSRV_CHECK(rows.rows() <= limits_.tokens && rows.cols() <= limits_.input_cols);
    const TensorView ready = TensorView::f32(reinterpret_cast<float*>(rows_.data()), rows.rows(), rows.cols());
    for_rows(rows.rows(), rows.cols(), [&](int t) { rows.make(t, 1, ready.f32_row(t)); });
    return ready;
  }

  // out (+)= in weight^T + bias, for weights that are floats.
  void plain_linear(TensorView in, const PackedMatrix& weight, std::span<const float> bias, Accumulate mode,
                    TensorView out) {
    LLMSRV_CHECK(kernels_.linear_scratch_bytes(in.cols) <= scratch_bytes(limits_));
    const LinearTask task{
        .in = in.f32_row(0),
        .in_stride = in.row_stride,
        .tokens = in.rows,
        .cols = in.cols,
        .panels = reinterpret_cast<const std::uint8_t*>(weight.panel(0)),
        .panel_bytes = weight.panel_bytes(),
        .rows = weight.rows(),
        .bias = bias.empty() ? nullptr : bias.data(),
        .add = mode == Accumulate::kAdd,
        .out = out.f32_row(0),
        .out_stride = out.row_stride,
    };
    KernelTable::Linear* kernel = weight.format() == WeightFormat::kBf16 ? kernels_.linear_bf16 : kernels_.linear_f32;
    pool_.run([&](int member) {
      const ThreadPool::Range panels = pool_.share(weight.panels(), member);
      kernel(task, panels.begin, panels.end, reinterpret_cast<std::uint8_t*>(scratch_of(member)));
    });
  }

  // Calls work(t) for every row, on one thread when that is over sooner.
  template <typename Work>
  void for_rows(int rows, int cols, const Work& work) {
    if (static_cast<std::int64_t>(rows) * cols < kAloneValues) {
      for (int t = 0; t < rows; ++t) work(t);
      return;
    }
    pool_.run([&](int member) {
      const ThreadPool::Range share = pool_.share(rows, member);
      for (int t = share.begin; t < share.end; ++t) work(t);
    });
  }

  static std::size_t rows_bytes(const StepLimits& limits) {
    return static_cast<std::size_t>(limits.tokens) * static_cast<std::size_t>(limits.input_cols) * sizeof(float);
  }

  // Scratch of one thread: whole cache lines, so that threads never write to the same one.
  std::size_t scratch_bytes(const StepLimits& limits) const {
    return (kernels_.linear_scratch_bytes(limits.input_cols) + 63) / 64 * 64;
  }
  std::byte* scratch_of(int member) const {
    return scratch_.data() + scratch_bytes(limits_) * static_cast<std::size_t>(member);
  }

  static std::size_t kv_head_bytes(const HeadShape& shape, int block_size, DType dtype) {
    const std::size_t scale_bytes = dtype == DType::kInt8 ? sizeof(float) : 0;
    const std::size_t token_bytes = static_cast<std::size_t>(shape.head_dim) * dtype_bytes(dtype) + scale_bytes;
    return 2 * token_bytes * static_cast<std::size_t>(block_size);
  }

  // The kernels that read and write a cache of one type.
  struct KvKernels {
    KernelTable::StoreKv* store;
    KernelTable::Attention* attention;
  };
  KvKernels kv_kernels(DType dtype) const {
    switch (dtype) {
      case DType::kF32:
        return {kernels_.store_kv_f32, kernels_.attention_f32};
      case DType::kBf16:
        return {kernels_.store_kv_bf16, kernels_.attention_bf16};
      case DType::kInt8:
        return {kernels_.store_kv_int8, kernels_.attention_int8};
    }
    throw InternalError("unknown type of the KV cache");
  }

  ThreadPool& pool_;
  const CpuIsa isa_;
  const KernelTable& kernels_;
  StepLimits limits_;
  AlignedBuffer scratch_;
  AlignedBuffer rows_;  // [tokens, input_cols]: a step's rows after a prologue, for weights that are floats
  PagedAttention attention_;
  Int8Linear int8_linear_;
  std::optional<Sampler> sampler_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(ThreadPool& pool, const std::string& isa) {
  return std::make_unique<CpuBackend>(pool, choose_cpu_isa(isa));
}

}  // namespace llmsrv
