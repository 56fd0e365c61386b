// The operations a device provides to the model. One comment = one formula and its shapes.
//
// Shapes are checked here, once for all backends (ops_check.cc); a backend implements only the do_* functions.
// Promise P3 binds every backend: row t of a result is a function of row t's own inputs and length. The order of its
// floating-point operations never depends on the number of rows, on the split over threads or on its neighbours.
// Thread rule: one caller at a time (the engine thread). No operation allocates after reserve().
//
// A device may work behind its caller: an operation that has returned has its place behind those before it, and only
// to_host(), drawn() and finish() wait. Arguments in host memory are what hold() was told of, or the step's own
// (run_step()).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "cpp/base/types.h"
#include "cpp/quant/packed_matrix.h"
#include "cpp/sample/draw.h"
#include "cpp/tensor/buffer.h"
#include "cpp/tensor/tensor_view.h"

namespace llmsrv {

constexpr int kHeadDimMax = 256;
constexpr int kBlockSizeMin = 8;  // tokens of a KV block

// Heads of an attention layer. `heads` is a multiple of `kv_heads` (grouped queries), head_dim even and at most
// kHeadDimMax.
struct HeadShape {
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int query_cols() const { return heads * head_dim; }
  int kv_cols() const { return kv_heads * head_dim; }
  int qkv_cols() const { return query_cols() + 2 * kv_cols(); }
};

// The keys and values of one layer: `blocks` blocks of `block_size` tokens, back to back. The layout inside a block is
// the backend's own; kv_block_bytes() tells its size.
struct KvLayer {
  std::byte* data = nullptr;
  int blocks = 0;
  int block_size = 0;
  DType dtype = DType::kBf16;
  std::size_t block_bytes = 0;  // of this layer
  MemoryPlace place = MemoryPlace::kDevice;
};

// Where one token's key and value go.
struct KvSlot {
  BlockId block;
  int offset;  // in [0, block_size)
};

// One sequence's rows in a step: a prompt chunk or a single decode token.
struct AttentionRange {
  int first_row = 0;                // first row of this sequence in the step
  int row_count = 0;                // rows; row i is at position context_len - row_count + i
  int context_len = 0;              // tokens in the cache, this step's rows included
  const BlockId* blocks = nullptr;  // ceil(context_len / block_size) ids
};

// A row of a step whose token is the one that a row of the newest draw gets.
struct DrawnToken {
  int row = 0;
  int draw_row = 0;
};

// One step's input, token by token; `ranges` tells which rows belong to which sequence.
struct StepInputs {
  std::vector<TokenId> tokens;          // [tokens]; those of `from_draw` say nothing
  std::vector<DrawnToken> from_draw;    // by row
  std::vector<std::int32_t> positions;  // [tokens]
  std::vector<KvSlot> slots;            // [tokens]
  std::vector<AttentionRange> ranges;   // [sequences]; together they cover all rows in order
  int block_size = 0;                   // of the slots and ranges
};

// cos and sin of every position and frequency: [positions, head_dim / 2] each.
struct RopeTable {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int positions = 0;
};

// What a linear layer does to a row before it multiplies. Row by row, so that no two steps need to wait for each other.
struct RmsNorm {  // x[i] = in[i] * weight[i] / sqrt(mean_j(in[j]^2) + eps)
  std::span<const float> weight;
  float eps;
};
// silu(a) = a / (1 + exp(-a))
// gelu_tanh(a) = a (1 + tanh(u)) / 2 = a / (1 + exp(-2 u)), u = sqrt(2 / pi) (a + 0.044715 a^3)
enum class GateKind { kSilu, kGeluTanh };
struct GatedMul {  // x[i] = gate(in[i]) * in[K + i]; in: [2 K]
  GateKind kind = GateKind::kSilu;
};
using Prologue = std::variant<std::monostate, RmsNorm, GatedMul>;

// RMS norms of queries and keys, each head by itself. [head_dim] both
struct HeadNorms {
  std::span<const float> query;
  std::span<const float> key;
  float eps;
};

// The largest step that will ever be asked for.
struct StepLimits {
  int tokens = 0;       // rows of a step
  int sequences = 0;    // ranges of a step
  int context_len = 0;  // longest context
  int input_cols = 0;   // widest input of a linear layer, after its prologue
  HeadShape shape;
  std::size_t matrix_values = 0;  // of the largest matrix, at most
  int result_rows = 0;            // of what to_host() and draw() are asked for
  int result_cols = 0;
  int top_logprobs = 0;  // alternatives that a draw tells
};

// What a model and its config want kernels for, known before anything is loaded.
struct KernelNeeds {
  HeadShape shape;
  std::vector<int> input_cols;        // of linear layers
  std::vector<WeightFormat> formats;  // of linear layers
  DType kv_dtype = DType::kBf16;
};

// How long a step took.
struct StepTimes {
  double device_s = 0.0;  // by the device's clock, from the first of its work to the last
  double gap_s = 0.0;     // likewise, from the end of the step before it
  double host_s = 0.0;    // of the caller, up to its next step, without what it waited for the device
};

class Backend {
 public:
  virtual ~Backend() = default;

  // What runs, for people: "cpu (avx512, 2 threads)".
  virtual std::string description() const = 0;

  // What this device has no kernels for: a phrase each, for people.
  virtual std::vector<std::string> lacks(const KernelNeeds&) const { return {}; }
  // Bytes of workspace that reserve() takes for these limits.
  virtual std::size_t workspace_bytes(const StepLimits& limits) const = 0;
  // Takes all memory that later calls within `limits` need.
  virtual void reserve(const StepLimits& limits) = 0;

  // Bytes of one block of one layer.
  virtual std::size_t kv_block_bytes(const HeadShape& shape, int block_size, DType dtype) const = 0;

  // The type of activations within a layer. The residual stream and the logits are float everywhere.
  virtual DType inner_dtype() const { return DType::kF32; }
  // Elements from one row of activations to the next.
  virtual int row_stride(int cols) const { return cols; }
  virtual std::unique_ptr<Buffer> allocate(std::size_t bytes, MemoryPlace place) {
    return std::make_unique<HostBuffer>(bytes, place);
  }
  // Bytes that hold() takes of the device.
  virtual std::size_t held_bytes(std::span<const std::span<const std::byte>>) const { return 0; }
  // Tells of all constants in host memory that operations are given: weights, norms, biases, tables. They outlive the
  // backend and never change. A device takes a copy. Called at most once, before any operation.
  virtual void hold(std::span<const std::span<const std::byte>>) {}

  // Whether operations return before they are done: then time that a caller measures says nothing.
  virtual bool works_behind() const { return false; }
  // Waits for all that was asked for.
  virtual void finish() {}
  // Of recent steps, oldest first, if the backend was made to measure them. Any thread.
  virtual std::vector<StepTimes> step_times() const { return {}; }
  // A result in host memory, after all that was asked for before. Valid until the next call.
  // REQUIRES: kF32, within the limits
  virtual TensorView to_host(TensorView result) { return result; }

  // Runs one step: `body` calls the operations of it, on activations of so many rows: all tokens, and further rows
  // that mean nothing where a device works in fixed sizes. A device may also do again what the body asked for in an
  // earlier step of the same form, and not call it: so it must depend on nothing but the rows.
  // REQUIRES: what StepInputs says; the inputs stay as they are until this returns; `from_draw` where works_behind()
  // alone, and rows of the newest draw
  using StepBody = std::function<void(int rows)>;
  void run_step(const StepInputs& inputs, const StepBody& body);

  // out[t, :] = scale * table[tokens[t], :].   table: [vocab, hidden], out: [rows, hidden].
  // REQUIRES: in a step; 0 <= tokens[t] < vocab
  void embed(const PackedMatrix& table, float scale, TensorView out);

  // out[i, :] = in[rows[i], :].   in: [*, hidden], out: [rows.size(), hidden]
  void gather_rows(TensorView in, std::span<const int> rows, TensorView out);

  // out[t, n] (+)= sum_k x[t, k] * weight[n, k] + bias[n], x = prologue(in), the weights one below the other.
  // in: [rows, K], or as the prologue says; weights: [N_i, K] each, N = sum of N_i; out: [rows, N].
  // The sum runs over k in ascending order in one float accumulator per output. `bias` is empty or N long.
  enum class Accumulate { kStore, kAdd };
  void linear(TensorView in, const Prologue& prologue, std::span<const PackedMatrix> weights,
              std::span<const float> bias, Accumulate mode, TensorView out);

  // out[t, :] += norm(in[t, :]).   in, out: [rows, hidden]
  void add_rms_norm(TensorView in, const RmsNorm& norm, TensorView out);

  // Norms queries and keys of row t, if `norms` says so, rotates them by position positions[t], in place, and stores
  // its key and value in slot slots[t]. The rotation pairs element i with i + head_dim / 2 (the half-split form):
  //   x'[i] = x[i] cos - x[i + d/2] sin;   x'[i + d/2] = x[i + d/2] cos + x[i] sin.
  // qkv: [rows, (heads + 2 kv_heads) * head_dim]: queries, keys, values. REQUIRES: in a step
  void rope_and_store_kv(TensorView qkv, const HeadShape& shape, const std::optional<HeadNorms>& norms,
                         const RopeTable& rope, const KvLayer& cache);

  // Causal attention of each row over its own sequence's cache, grouped queries:
  //   out[t, h] = sum_j softmax_j(cap(scale * q[t, h] . k[j, h / group])) v[j, h / group]
  // for j from max(0, p - window + 1), or from 0 without a window, up to p, the position of row t.
  // cap(x) = soft_cap * tanh(x / soft_cap), or x without a soft cap.
  // qkv as above (only the queries are read), out: [rows, heads * head_dim]. REQUIRES: in a step
  struct AttentionOptions {
    float scale = 1.0f;         // positive
    std::optional<int> window;  // tokens a row sees, itself included
    std::optional<float> soft_cap;
  };
  void paged_attention(TensorView qkv, const HeadShape& shape, const KvLayer& cache, const AttentionOptions& options,
                       TensorView out);

  // Block moves[i].to of every layer of `to` becomes block moves[i].from of the same layer of `from`, one move after
  // the other. The two are the same cache (copy on write), or the cache and the swap pool. REQUIRES: layers of equal
  // block_bytes, as many in `to` as in `from`; ids within both
  void move_blocks(std::span<const KvLayer> from, std::span<const KvLayer> to, std::span<const BlockMove> moves);

  // Draws a token of each row of logits: token i by rows[i], as cpp/sample/sampler.h defines it. What the rows refer to
  // may change once this has returned. No rows are no work, and drawn() then waits for what was asked for before.
  //   logits: [rows.size(), vocab]
  // REQUIRES: what SampleRow says; rows within the limits; fewer than kDrawsMost draws whose results were not taken;
  // `pending` where works_behind() alone, and a row of the draw before
  void draw(TensorView logits, std::span<const SampleRow> rows);
  // The results of the oldest draw that were not taken yet, once they are there; the i-th belongs to row i. Valid until
  // the next call. REQUIRES: there is one
  std::span<const Sampled> drawn();

 protected:
  // The step that runs. REQUIRES: one does
  const StepInputs& step() const;
  // What a backend calls the body of a step by.
  void run_body(const StepBody& body, int rows);

 private:
  virtual void do_run_step(const StepInputs& inputs, const StepBody& body) {
    run_body(body, static_cast<int>(inputs.tokens.size()));
  }
  virtual void do_embed(const PackedMatrix& table, float scale, TensorView out) = 0;
  virtual void do_gather_rows(TensorView in, std::span<const int> rows, TensorView out) = 0;
  virtual void do_linear(TensorView in, const Prologue& prologue, std::span<const PackedMatrix> weights,
                         std::span<const float> bias, Accumulate mode, TensorView out) = 0;
  virtual void do_add_rms_norm(TensorView in, const RmsNorm& norm, TensorView out) = 0;
  virtual void do_rope_and_store_kv(TensorView qkv, const HeadShape& shape, const std::optional<HeadNorms>& norms,
                                    const RopeTable& rope, const KvLayer& cache) = 0;
  virtual void do_paged_attention(TensorView qkv, const HeadShape& shape, const KvLayer& cache,
                                  const AttentionOptions& options, TensorView out) = 0;
  virtual void do_move_blocks(std::span<const KvLayer> from, std::span<const KvLayer> to,
                              std::span<const BlockMove> moves) = 0;
  virtual void do_draw(TensorView logits, std::span<const SampleRow> rows) = 0;
  virtual std::span<const Sampled> do_drawn() = 0;

  // Ends of what the step's tokens, positions and blocks lie in, so that an operation checks them at once.
  struct StepEnds {
    TokenId token = 0;
    std::int32_t position = 0;
    BlockId block = 0;
  };
  const StepInputs* step_ = nullptr;
  StepEnds ends_;
  int step_rows_ = 0;
  std::size_t draws_left_ = 0;  // to be taken
  int drawn_rows_ = 0;          // of the newest draw
};

}  // namespace llmsrv
