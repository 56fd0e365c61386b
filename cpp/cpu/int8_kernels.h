// Linear layers whose weights stay packed integers: activations become int8 per row and group of 32 columns, products
// and their sums in a group are exact integers. Plain C types, as in kernels.h.
//
// One order of operations, the same in every table, for every number of rows and every split over threads. Per output
// one chain over groups, ascending:
//   acc = fma(float(isum), w_scale * d, acc)     isum = sum_k (q_w - zero) q_x, exact in int32 and in float
//   acc = fma(w_min, d * sum_k q_x, acc)         formats with minimums
// Two-level scales are multiplied in float first: w_scale = d_w * sc, w_min = -(dmin * m). kU6K has two scales in a
// group: isum = sc0 * isum0 + sc1 * isum1, w_scale = d_w.
//
// Thread rule: functions of a table write nothing but their task's outputs and may run on any thread.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "cpp/quant/packed_layout.h"

namespace llmsrv::cpu {

// Quantized activations are opaque to all but the table that made them: tiles of `tile_tokens` rows, the last one
// perhaps lower, each [groups] records of kActivationBytes per row.
constexpr size_t kActivationBytes = packed::kGroupCols + 16;

// d = max|x| / 127, q = x * (127 / max|x|) rounded to nearest, ties to even. A group whose values are all below 2^-100
// is zero. A group with a NaN or an infinity has d = NaN and q = 0: each output of its row is NaN.
struct QuantizeTask {
  const float* in;  // [tokens, groups * 32]
  ptrdiff_t in_stride;
  int tokens;
  int groups;
  uint8_t* out;  // activation_bytes(tokens, groups), on a cache line
};

// As LinearTask.
struct Int8LinearTask {
  const uint8_t* in;  // quantized
  int tokens;
  int groups;
  const uint8_t* panels;  // of the whole matrix (quant/packed_matrix.h)
  size_t panel_bytes;
  int rows;
  const float* bias;
  bool add;
  float* out;  // [tokens, rows]
  ptrdiff_t out_stride;
};

struct Int8Table {
  int tile_tokens;  // rows of an activation tile
  size_t (*activation_bytes)(int tokens, int groups);

  // Records [first, end) of out, counted through all tiles.
  void (*quantize)(const QuantizeTask& task, int first, int end);

  // Panels [first, end) of a matrix in the format of the name.
  using Linear = void(const Int8LinearTask& task, int first, int end);
  Linear* linear_u4;
  Linear* linear_u4_g64;
  Linear* linear_u4_g128;
  Linear* linear_u4_zero;
  Linear* linear_u5;
  Linear* linear_u5_zero;
  Linear* linear_s8;
  Linear* linear_u4k;
  Linear* linear_u5k;
  Linear* linear_u6k;
};

namespace int8_scalar {
extern const Int8Table table;
}
namespace int8_avx2 {
extern const Int8Table table;
}
// Needs NEON's dot products.
namespace int8_neon {
extern const Int8Table table;
}
// Needs AVX-512 VNNI and GFNI.
namespace int8_avx512 {
extern const Int8Table table;
}

}  // namespace llmsrv::cpu
