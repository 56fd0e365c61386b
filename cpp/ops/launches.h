// What a device's kernels are asked for, as plain structs: the arguments of each launch, and the table of launches that
// a plug-in brings.
//
// Pointers lead to device memory. A launch puts its work behind what its stream was given before, and returns at once:
// kOk, or why it could not; then plugin.h's last_error() says more. No rows, tokens or ranges: nothing is launched.
#pragma once

#include <cstddef>
#include <cstdint>

namespace llmsrv::device {

enum class Code : std::int32_t {
  kOk,
  kUnsupported,  // no kernel for these shapes or types; nothing was launched
  kOutOfMemory,
  kFailed,  // the device or its driver; it may be of no more use
};

enum class Element : std::int32_t { kF32, kBf16, kF16, kF8, kInt8 };  // kF8: 4 bits of exponent, 3 of fraction
// The formats of cpp/quant/weight_format.h.
enum class Packing : std::int32_t { kF32, kBf16, kU4, kU4Zero, kU5, kU5Zero, kS8, kU4K, kU5K, kU6K, kU4G64, kU4G128 };
enum class Gate : std::int32_t { kSilu, kGeluTanh };

using Stream = void*;

// [rows, cols]; row t starts at element t * stride. Rows start at multiples of 16 bytes.
struct Rows {
  void* data;
  Element type;
  std::int32_t rows;
  std::int32_t cols;
  std::int32_t stride;
};

// A matrix as cpp/quant/packed_matrix.h lays it out.
struct Weights {
  const void* panels;
  std::size_t panel_bytes;
  Packing packing;
  std::int32_t rows;
  std::int32_t cols;
};

// One layer's keys and values: [blocks] of [2: keys, values][kv_heads][block_size][head_dim]; of one-byte types then
// float2 [kv_heads][block_size], scales of key and value.
struct KvBlocks {
  void* data;
  Element type;
  std::int32_t blocks;
  std::int32_t kv_heads;
  std::int32_t block_size;
  std::int32_t head_dim;
};

// out[t, :] = scale * table[ids[t], :], where an id of -1 - k stands for drawn[k].   out: kF32
struct Embed {
  Weights table;
  const std::int32_t* ids;    // [out.rows]
  const std::int32_t* drawn;  // tokens of the newest draw
  Rows out;
  float scale;
};

// out[t, i] (+)= in[t, i] * weight[i] / sqrt(mean_j(in[t, j]^2) + eps).   in: kF32; out: kF32, or kBf16 without `adds`.
struct RmsNorm {
  Rows in;
  const float* weight;  // [in.cols]
  Rows out;
  float eps;
  std::int32_t adds;
};

// out[t, i] = gate(in[t, i]) * in[t, cols + i].   in: [tokens, 2 cols], of the type of `out`.
struct GatedMul {
  Rows in;
  Rows out;
  Gate gate;
};

// out[t, :] = in[ids[t], :].   kF32 both.
struct GatherRows {
  Rows in;
  const std::int32_t* ids;  // [out.rows]
  Rows out;
};

// out[t, n] (+)= sum_k in[t, k] weights[n, k] + bias[n].   in: kF32 and then out too, the sum in ascending order of k;
// or in: kBf16 by tensor cores, out: kBf16 or kF32.
struct Linear {
  Rows in;
  Weights weights;
  const float* bias;  // [weights.rows] or none
  Rows out;
  std::int32_t adds;
};

// Norms queries and keys where weights are given, rotates queries in place and stores keys and values. qkv has no gaps.
struct RopeStoreKv {
  Rows qkv;  // [tokens, (heads + 2 kv_heads) head_dim]; kF32 with any cache, else of its type or with one of one byte
  std::int32_t heads;
  const float* query_norm;  // [head_dim] or none, as the next
  const float* key_norm;
  float eps;
  const float* cos;  // [positions, head_dim / 2]
  const float* sin;
  const std::int32_t* positions;    // [tokens]
  const std::int32_t* slot_blocks;  // negative: stored nowhere
  const std::int32_t* slot_offsets;
  KvBlocks cache;
};

// One sequence's rows in a step.
struct Range {
  std::int32_t first_row;      // in the step
  std::int32_t row_count;      // row i is at position context_len - row_count + i; 0: there is nothing
  std::int32_t context_len;    // this step's rows included
  std::int32_t first_block;    // in block_ids
  std::int32_t first_partial;  // of this range, in units of (segment, row)
};

// Causal attention over the cache, as cpp/ops/backend.h defines it. Two ways with the same bits: by segments, for few
// rows over any context, or in one run, for many rows.
struct Attention {
  Rows queries;  // the first heads * head_dim columns are read; types as for RopeStoreKv
  Rows out;      // [tokens, heads * head_dim], of the same type, no gaps
  KvBlocks cache;
  std::int32_t heads;
  const Range* ranges;            // [range_count]
  const std::int32_t* block_ids;  // of all ranges
  std::int32_t range_count;
  std::int32_t rows_max;      // of a range; larger bounds than needed cost little
  std::int32_t segments_max;  // of a range, by segments only
  std::int32_t window;        // tokens a row sees, itself included
  float scale;
  float soft_cap;  // only where has_soft_cap
  std::int32_t has_soft_cap;
  std::int32_t by_segments;
  std::int32_t by_warp_groups;  // in one run only, on a Hopper only: its own products, where there is a kernel for them
  float* partials;              // by segments only: [(segments, rows) of all ranges][heads][head_dim + 2]
  std::int32_t partial_count;
};

// Whether a Hopper's products of warp groups, which prompts may use, round as those of warps do, which decoding uses:
// adds to *unequal how many of `blocks` times 6144 drawn sums differ.
struct CompareProducts {
  std::int32_t blocks;
  std::int32_t* unequal;
};

// Part of the words of a draw.
struct IdList {
  std::int32_t first;
  std::int32_t count;
};

// How a row is drawn. What its lists name changes its logits before, as cpp/sample/penalties.h does.
struct SampleRow {
  double uniform;     // in [0, 1)
  float temperature;  // 0: the likeliest
  float top_p;        // 1 keeps all
  float min_p;
  std::int32_t top_k;  // 0 keeps all
  IdList prompt;
  IdList output;
  IdList forbidden;
  IdList allowed;    // none allows all
  IdList biased;     // no id twice; as many biases follow behind, as their bits
  float repetition;  // over prompt and output
  float frequency;   // over output, as the next
  float presence;
  std::int32_t pending;  // the output has one more token, this one of `drawn`; negative: it has not
  std::int32_t changes;  // 0: the logits stay as they are, and no list is read
};

// Draws token r from row r of the logits, as cpp/sample/sampler.h does.
struct Sample {
  Rows logits;            // kF32
  const SampleRow* rows;  // [logits.rows]
  const std::int32_t* words;
  const std::int32_t* drawn;  // tokens of the draw before
  float* weights;             // [logits.rows, logits.cols], workspace
  std::int32_t* tokens;       // [logits.rows]
  std::int32_t* finite;       // [logits.rows]; 0: a logit is NaN or infinite, and the token means nothing
};

struct LogprobRow {
  std::int32_t row;        // of the logits and tokens
  std::int32_t top_count;  // alternatives, at most logits.cols
};

// Log-probability and rank of tokens, and the likeliest tokens, as cpp/sample/logprobs.h tells them.
struct Logprobs {
  Rows logits;  // kF32
  const LogprobRow* rows;
  std::int32_t row_count;
  const std::int32_t* tokens;  // [logits.rows]
  float* logprobs;             // [row_count]
  std::int32_t* ranks;         // [row_count]
  std::int32_t* top_tokens;    // [row_count, top_stride], likeliest first, as the next
  float* top_logprobs;
  std::int32_t top_stride;
};

struct LaunchTable {
  std::int32_t segment_keys;  // keys of one segment of Attention; segments start at multiples of it
  // Head sizes of Attention whose queries are bf16 or fp16; with float queries it is any even one up to kHeadDimMax.
  const std::int32_t* head_dims;
  std::int32_t head_dim_count;
  std::int32_t vocab_max;  // columns of Sample and Logprobs
  std::int32_t top_logprobs_max;
  Code (*embed)(const Embed*, Stream);
  Code (*rms_norm)(const RmsNorm*, Stream);
  Code (*gated_mul)(const GatedMul*, Stream);
  Code (*gather_rows)(const GatherRows*, Stream);
  Code (*linear)(const Linear*, Stream);
  Code (*rope_store_kv)(const RopeStoreKv*, Stream);
  Code (*attention)(const Attention*, Stream);
  Code (*compare_products)(const CompareProducts*, Stream);
  Code (*sample)(const Sample*, Stream);
  Code (*logprobs)(const Logprobs*, Stream);
};

}  // namespace llmsrv::device
