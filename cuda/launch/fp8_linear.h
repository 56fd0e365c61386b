// Linear layers of fp8 weights and fp8 inputs: by cuBLASLt, on devices of compute capability 8.9 and later.
//
// A row of inputs and an output's row of weights have a scale each. The library is asked for the plain product, in
// float, and a kernel of ours multiplies by the scales: the library's own scales per row ("outer vectors") exist on
// Hopper alone, and one scale for a whole matrix loses the small rows beside a large one and would make a row's bits
// depend on its neighbours. It costs 8 bytes of traffic per output and row, beside the weights' one byte per column.
//
// Each launch returns at once; errors of the launch throw. No rows: no launch.
#pragma once

#include "cuda/kernels/quantize_rows.cuh"
#include "cuda/kernels/scale_products.cuh"
#include "cuda/library/dense_products.h"

namespace llmsrv::cuda {

// T is float or Bf16.
template <typename T>
void quantize_rows(const QuantizeRowsParams<T>& params, Stream stream);

// Out is float or Bf16.
template <typename Out>
void scale_products(const ScaleProductsParams<Out>& params, Stream stream);

template <typename T>
struct Fp8LinearParams {
  const T* in = nullptr;  // [rows, cols]; row t starts at t * in_stride
  int in_stride = 0;
  int cols = 0;                          // a multiple of 16
  const Fp8* weights = nullptr;          // [outputs, cols], back to back
  const float* weight_scales = nullptr;  // [outputs]
  const float* bias = nullptr;           // [outputs], or none
  T* out = nullptr;                      // [rows, outputs]; row t starts at t * out_stride
  int out_stride = 0;
  int outputs = 0;  // a multiple of 16
  int rows = 0;
  bool adds = false;  // to what is there
  // For what lies between the three steps, at multiples of 16 bytes.
  Fp8* quantized = nullptr;  // [rows, cols]
  float* scales = nullptr;   // [rows]
  float* sums = nullptr;     // [rows, outputs]
};

// What DenseProducts prepares for a layer. Throws std::invalid_argument when columns or outputs are no multiples of 16.
DenseShape fp8_shape(int outputs, int cols);

// out[t, n] (+)= sum_k in[t, k] w[n, k] + bias[n], with inputs rounded to fp8. T is float or Bf16.
// REQUIRES: `products` has prepared fp8_shape() for so many rows
template <typename T>
void fp8_linear(DenseProducts& products, const Fp8LinearParams<T>& params, Stream stream);

}  // namespace llmsrv::cuda
