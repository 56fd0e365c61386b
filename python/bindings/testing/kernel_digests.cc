#include "python/bindings/testing/kernel_digests.h"

#include <cstring>
#include <memory>
#include <optional>
#include <span>

#include "cpp/base/aligned_buffer.h"
#include "cpp/base/counter_rng.h"
#include "cpp/base/thread_pool.h"
#include "cpp/cpu/cpu_backend.h"
#include "cpp/quant/packed_matrix.h"
#include "cpp/quant/quantize.h"

namespace llmsrv::testing {
namespace {

constexpr int kMostTokens = 70;  // several tiles of any table
constexpr int kMostCols = 1024;
constexpr int kContext = 300;  // three segments of attention
constexpr int kBlockSize = 16;
constexpr HeadShape kLargestShape = {6, 2, 256};

// Values of one input after another, all different.
class Inputs {
 public:
  // In [-size, size).
  std::vector<float> floats(int count, float size = 1.0f) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) {
      value = static_cast<float>(counter_uniform(1, 0, next_++) * 2.0 - 1.0) * size;
    }
    return values;
  }
  std::vector<std::byte> bytes(std::size_t count) {
    std::vector<std::byte> values(count);
    for (std::byte& value : values) value = static_cast<std::byte>(splitmix64(next_++) & 255);
    return values;
  }
  // Bits of a half-precision number in [2^-7, 2^-6).
  std::uint16_t half() { return static_cast<std::uint16_t>(0x2000 | (splitmix64(next_++) & 1023)); }

 private:
  std::uint32_t next_ = 0;
};

// Places of the half-precision numbers of a block.
std::vector<std::size_t> half_places(SourceFormat format) {
  switch (format) {
    case SourceFormat::kQ4_0:
    case SourceFormat::kQ5_0:
    case SourceFormat::kQ8_0:
      return {0};
    case SourceFormat::kQ4_1:
    case SourceFormat::kQ5_1:
    case SourceFormat::kQ4_K:
    case SourceFormat::kQ5_K:
      return {0, 2};
    case SourceFormat::kQ6_K:
      return {208};
    case SourceFormat::kF32:
    case SourceFormat::kF16:
    case SourceFormat::kBf16:
      break;
  }
  return {};
}

// FNV-1a, of the bytes in their order.
std::uint64_t hash_of(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3u;
  return hash;
}

class Digests {
 public:
  explicit Digests(const std::string& isa) : pool_(2), backend_(make_cpu_backend(pool_, isa)) {
    backend_->reserve({kMostTokens, 1, kContext, 2 * kMostCols, kLargestShape});
  }

  void rows();
  void matrix(WeightFormat format);
  void attention(const std::string& name, DType dtype, const HeadShape& shape,
                 const Backend::AttentionOptions& options);

  std::vector<std::pair<std::string, std::uint64_t>> found;

 private:
  void add(const std::string& name, const std::vector<float>& values) {
    found.emplace_back(name, hash_of(std::as_bytes(std::span(values))));
  }
  PackedMatrix random_matrix(WeightFormat format, int rows, int cols);
  void linear(const std::string& name, const PackedMatrix& weight, const Prologue& prologue, int in_cols);

  ThreadPool pool_;
  std::unique_ptr<Backend> backend_;
  Inputs inputs_;
};

TensorView view(std::vector<float>& values, int rows) {
  return TensorView::f32(values.data(), rows, static_cast<int>(values.size()) / rows);
}

PackedMatrix Digests::random_matrix(WeightFormat format, int rows, int cols) {
  PackedMatrix matrix(format, rows, cols);
  const SourceFormat source = source_of(format);
  if (!PackedMatrix::accepts(format, source) || !is_quantized(format)) {
    const std::vector<float> values = inputs_.floats(rows * cols, 0.1f);
    matrix.set_rows(0, rows, SourceFormat::kF32, std::as_bytes(std::span(values)), pool_);
    return matrix;
  }
  const std::size_t row_bytes = source_row_bytes(source, cols);
  std::vector<std::byte> blocks = inputs_.bytes(row_bytes * static_cast<std::size_t>(rows));
  for (std::size_t block = 0; block < blocks.size(); block += source_block_bytes(source)) {
    for (const std::size_t place : half_places(source)) {
      const std::uint16_t half = inputs_.half();
      std::memcpy(blocks.data() + block + place, &half, sizeof(half));
    }
  }
  matrix.set_rows(0, rows, source, blocks, pool_);
  return matrix;
}

// All that a step does without a matrix or a cache.
void Digests::rows() {
  std::vector<float> in = inputs_.floats(5 * 99);
  std::vector<float> out = inputs_.floats(5 * 99);
  const std::vector<float> weight = inputs_.floats(99);
  backend_->add_rms_norm(view(in, 5), {weight, 1e-5f}, view(out, 5));
  add("add_rms_norm", out);
}

void Digests::linear(const std::string& name, const PackedMatrix& weight, const Prologue& prologue, int in_cols) {
  for (const int tokens : {1, 7, kMostTokens}) {
    std::vector<float> in = inputs_.floats(tokens * in_cols, 3.0f);
    std::vector<float> out = inputs_.floats(tokens * weight.rows());
    const std::vector<float> bias = inputs_.floats(weight.rows());
    const auto mode = tokens == 7 ? Backend::Accumulate::kAdd : Backend::Accumulate::kStore;
    backend_->linear(view(in, tokens), prologue, {&weight, 1}, bias, mode, view(out, tokens));
    add(name + ", " + std::to_string(tokens) + " rows", out);
  }
}

void Digests::matrix(WeightFormat format) {
  const std::string name(weight_format_name(format));
  const int cols = 3 * std::max(32, scale_cols(format));
  const PackedMatrix weight = random_matrix(format, 37, cols);
  linear("linear " + name, weight, {}, cols);
  const std::vector<float> norm = inputs_.floats(cols);
  linear("rms_norm, linear " + name, weight, RmsNorm{norm, 1e-6f}, cols);
  linear("silu, linear " + name, weight, GatedMul{GateKind::kSilu}, 2 * cols);
  linear("gelu, linear " + name, weight, GatedMul{GateKind::kGeluTanh}, 2 * cols);
  std::vector<float> out(static_cast<std::size_t>(3 * cols));
  StepInputs step;
  step.tokens = {36, 0, 17};
  backend_->run_step(step, [&](int rows) { backend_->embed(weight, 1.5f, view(out, rows)); });
  add("embed " + name, out);
}

// A prompt of kContext tokens in one step, and its cache.
void Digests::attention(const std::string& name, DType dtype, const HeadShape& shape,
                        const Backend::AttentionOptions& options) {
  constexpr int kBlocks = (kContext + kBlockSize - 1) / kBlockSize;
  const std::size_t block_bytes = backend_->kv_block_bytes(shape, kBlockSize, dtype);
  const AlignedBuffer memory(block_bytes * kBlocks);
  const KvLayer cache{const_cast<std::byte*>(memory.data()), kBlocks, kBlockSize, dtype, block_bytes};
  std::vector<BlockId> blocks;
  for (int block = 0; block < kBlocks; ++block) blocks.push_back(kBlocks - 1 - block);

  const std::vector<float> cos = inputs_.floats(kContext * shape.head_dim / 2);
  const std::vector<float> sin = inputs_.floats(kContext * shape.head_dim / 2);
  const std::vector<float> norms = inputs_.floats(shape.head_dim);
  std::vector<float> out(static_cast<std::size_t>(kMostTokens * shape.query_cols()));
  for (int first = 0; first < kContext; first += kMostTokens) {
    const int rows = std::min(kMostTokens, kContext - first);
    std::vector<float> qkv = inputs_.floats(rows * shape.qkv_cols());
    out.resize(static_cast<std::size_t>(rows * shape.query_cols()));
    StepInputs step;
    step.block_size = kBlockSize;
    for (int position = first; position < first + rows; ++position) {
      step.tokens.push_back(0);
      step.positions.push_back(position);
      step.slots.push_back({blocks[static_cast<std::size_t>(position / kBlockSize)], position % kBlockSize});
    }
    step.ranges.push_back({0, rows, first + rows, blocks.data()});
    backend_->run_step(step, [&](int count) {
      backend_->rope_and_store_kv(view(qkv, count), shape, HeadNorms{norms, norms, 1e-6f},
                                  {cos.data(), sin.data(), kContext}, cache);
      backend_->paged_attention(view(qkv, count), shape, cache, options, view(out, count));
    });
    add(name + ", rows from " + std::to_string(first), out);
  }
  found.emplace_back(name + ", cache", hash_of({memory.data(), memory.size()}));
}

}  // namespace

std::vector<std::pair<std::string, std::uint64_t>> kernel_digests(const std::string& isa) {
  Digests digests(isa);
  digests.rows();
  for (const char* name : {"f32", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "int4-g64",
                           "int4-g128", "int8-g64", "int8-g128"}) {
    digests.matrix(weight_format_from_name(name).value());
  }
  for (const DType dtype : {DType::kBf16, DType::kF32, DType::kInt8}) {
    const std::string name = "attention, cache in " + std::string(dtype_name(dtype));
    digests.attention(name, dtype, {6, 2, 64}, {0.125f, std::nullopt, std::nullopt});
    digests.attention(name + ", window and soft cap", dtype, {3, 1, 80}, {0.3f, 133, 5.0f});
    digests.attention(name + ", large heads", dtype, {4, 1, 256}, {0.0625f, std::nullopt, std::nullopt});
  }
  return digests.found;
}

}  // namespace llmsrv::testing
