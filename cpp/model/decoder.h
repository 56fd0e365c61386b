// A decoder-only transformer as one straight function over a step's tokens.
//
//   x = embed[token]
//   for each layer:  x += O attention(rope(QKV norm(x)))      x += DOWN (gate(GATE norm(x)) * UP norm(x))
//   with norms of queries, keys and of what is added to x, where the model has them
//   logits = HEAD norm(x), for the rows that are asked for
//
// Thread rule: engine thread only. No allocation after construction.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cpp/model/kv_cache.h"
#include "cpp/model/rope.h"
#include "cpp/model/weights.h"
#include "cpp/ops/backend.h"
#include "cpp/tensor/buffer.h"

namespace llmsrv {

struct DecoderLimits {
  int tokens = 0;        // rows of a step
  int sequences = 0;     // ranges of a step
  int logits_rows = 0;   // rows of one logits() call
  int context_len = 0;   // longest sequence
  int top_logprobs = 0;  // alternatives that a draw tells
};

class Decoder {
 public:
  // REQUIRES: `weights` is complete and, like `backend` and `cache`, outlives the decoder.
  Decoder(const Weights& weights, Backend& backend, const KvCache& cache, const DecoderLimits& limits);

  // Computes all rows of a step and stores their keys and values; a device may still be at it afterwards. The rows stay
  // readable by logits() until the next call.
  void forward(const StepInputs& inputs);

  // Logits of some rows of the last step, in the backend's memory. [rows.size(), vocab]; valid until the next call.
  // REQUIRES: rows.size() <= limits.logits_rows
  TensorView logits(std::span<const int> rows);

  static StepLimits step_limits(const ModelSpec& spec, const DecoderLimits& limits);
  // REQUIRES: `formats` has all of the model's matrices
  static KernelNeeds kernel_needs(const ModelSpec& spec, const WeightFormats& formats, DType kv_dtype);
  // Bytes that a decoder takes beside weights, cache and the backend's workspace.
  static std::size_t workspace_bytes(const ModelSpec& spec, const DecoderLimits& limits, const Backend& backend);

 private:
  struct Activations;
  static Activations activations(const ModelSpec& spec, const DecoderLimits& limits, const Backend& backend);
  void hold_constants();
  // The step's operations, on so many rows.
  void run_layers(int rows);
  // hidden += weight x, or its norm, for x = prologue(in). `post_norm` is empty where there is none.
  void add_linear(TensorView in, const Prologue& prologue, const PackedMatrix& weight, std::span<const float> post_norm,
                  TensorView hidden);

  const Weights& weights_;
  const ModelSpec& spec_;
  Backend& backend_;
  const KvCache& cache_;
  const DecoderLimits limits_;
  RopeTables rope_;
  std::unique_ptr<Buffer> memory_;  // all activations below
  TensorView hidden_;               // [tokens, hidden]: the residual stream
  TensorView qkv_;                  // [tokens, (heads + 2 kv_heads) * head_dim]
  TensorView attended_;             // [tokens, heads * head_dim]
  TensorView branch_;               // [tokens, hidden]: what is normed before it is added, if the model does that
  TensorView gate_up_;              // [tokens, 2 * intermediate]
  TensorView picked_;               // [logits_rows, hidden]
  TensorView logits_;               // [logits_rows, vocab]
};

}  // namespace llmsrv
