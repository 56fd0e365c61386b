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

constexpr int kTileTokens = 16;

// One group of columns of up to 16 rows. Several cache lines of its own: threads that fill different groups never
// write to the same line.
struct alignas(64) ActivationGroup {
  int8_t q[kTileTokens][packed::kGroupCols];
  float d[kTileTokens];           // x = d q
  float d_sum[kTileTokens];       // d * (sum of q)
  int32_t low_sum[kTileTokens];   // of q[0..15]
  int32_t high_sum[kTileTokens];  // of q[16..31]
};

// d = max|x| / 127, q = x * (127 / max|x|) rounded to nearest, ties to even. A group whose values are all below 2^-100
// is zero. A group with a NaN or an infinity has d = NaN and q = 0: each output of its row is NaN.
struct QuantizeTask {
  const float* in;  // [tokens, groups * 32]
  ptrdiff_t in_stride;
  int tokens;
  int groups;
  ActivationGroup* out;  // [tiles of 16 tokens][groups]
};

// As LinearTask.
struct Int8LinearTask {
  const ActivationGroup* in;  // [tiles of 16 tokens][groups]
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
  // Groups [first, end) of out, counted through all tiles.
  void (*quantize)(const QuantizeTask& task, int first, int end);

  // Panels [first, end) of a matrix in the format of the name.
  using Linear = void(const Int8LinearTask& task, int first, int end);
  Linear* linear_u4;
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
// Needs AVX-512 VNNI and GFNI.
namespace int8_avx512 {
extern const Int8Table table;
}

}  // namespace llmsrv::cpu
