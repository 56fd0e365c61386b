// The kernels of one instruction set, as a table of plain functions. Each works on one thread's share and allocates
// nothing. This header and everything a kernel file includes is plain C or lives in an unnamed namespace: no inline
// function compiled with AVX may be merged into code that runs without it.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace llmsrv::cpu {

// out[t, n] (+)= sum_k in[t, k] weight[n, k] + bias[n]
struct LinearTask {
  const float* in;  // [tokens, cols]
  ptrdiff_t in_stride;
  int tokens;
  int cols;               // K
  const uint8_t* panels;  // of the whole matrix (quant/packed_matrix.h)
  size_t panel_bytes;
  int rows;           // N
  const float* bias;  // [rows], or null
  bool add;           // to what `out` holds
  float* out;         // [tokens, rows]
  ptrdiff_t out_stride;
};

constexpr int kMostHeadDim = 256;

// What all shares of one attention call have in common.
struct AttentionTask {
  const float* queries;  // first row of qkv: the queries stand first in a row
  ptrdiff_t query_stride;
  int group;     // query heads per kv head
  int head_dim;  // at most kMostHeadDim
  const uint8_t* cache;
  size_t block_bytes;
  size_t head_bytes;  // keys and values of one kv head in one block
  int block_size;
  int window;             // tokens a row sees, itself included; the context length or more when there is no window
  float scale;            // positive
  const float* soft_cap;  // null without one
  float* out;             // [rows, heads * head_dim]
  ptrdiff_t out_stride;
};

// A few queries of one sequence that share a kv head, and so share each load of a key or a value. Query i is row i /
// group of the range and head i % group of the group.
struct AttentionItem {
  int first_row;  // of the range, in the step
  int row_count;
  int context_len;
  const int32_t* blocks;
  int kv_head;
  int first_query;
  int query_count;  // <= KernelTable::query_tile
};

struct KernelTable {
  int query_tile;  // most queries of an AttentionItem

  // Panels [first, end) of a matrix in the format of the name. `scratch`: linear_scratch_bytes(task.cols), on a cache
  // line
  using Linear = void(const LinearTask& task, int first_panel, int end_panel, uint8_t* scratch);
  Linear* linear_bf16;
  Linear* linear_f32;
  size_t (*linear_scratch_bytes)(int cols);

  // One row. The norms may work in place.
  using RmsNorm = void(const float* in, const float* weight, int cols, float eps, float* out);
  RmsNorm* rms_norm;
  RmsNorm* add_rms_norm;  // to what `out` holds
  using GatedMul = void(const float* gate, const float* up, int cols, float* out);
  GatedMul* silu_mul;
  GatedMul* gelu_mul;  // of the tanh form

  // One head of one row, in place; cos and sin are those of the row's position.
  void (*rotate)(float* head, const float* cos, const float* sin, int head_dim);

  // One head's key and value into slot `offset` of its part of a block.
  using StoreKv = void(const float* key, const float* value, int head_dim, int block_size, int offset,
                       uint8_t* head_block);
  StoreKv* store_kv_bf16;
  StoreKv* store_kv_f32;
  StoreKv* store_kv_int8;

  // Segments [first, end) of an item: segment s is the positions [s, s + 1) * segment_positions. The segments of one
  // item may be computed by several threads; each leaves its results in the item's `partials`.
  int segment_positions;
  size_t (*attention_partial_floats)(int context_len, int head_dim);  // of one item
  using Attention = void(const AttentionTask& task, const AttentionItem& item, int first_segment, int end_segment,
                         float* partials);
  Attention* attention_bf16;
  Attention* attention_f32;
  Attention* attention_int8;
  // Joins the segments of an item into its rows of `out`. Uses the partials up.
  void (*finish_attention)(const AttentionTask& task, const AttentionItem& item, float* partials);
};

namespace scalar {
extern const KernelTable table;
}
namespace avx2 {
extern const KernelTable table;
}
namespace avx512 {
extern const KernelTable table;
}
// The rest of these two tables is AVX-512's.
namespace avx512_bf16 {
void linear_bf16(const LinearTask& task, int first_panel, int end_panel, uint8_t* scratch);
size_t linear_scratch_bytes(int cols);
}  // namespace avx512_bf16
namespace attention_avx512_bf16 {
void attention_bf16(const AttentionTask& task, const AttentionItem& item, int first_segment, int end_segment,
                    float* partials);
}  // namespace attention_avx512_bf16
namespace amx {
void linear_bf16(const LinearTask& task, int first_panel, int end_panel, uint8_t* scratch);
size_t linear_scratch_bytes(int cols);
}  // namespace amx

}  // namespace llmsrv::cpu
