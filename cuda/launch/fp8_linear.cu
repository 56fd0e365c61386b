#include "cuda/launch/fp8_linear.h"

namespace llmsrv::cuda {

template <typename T>
void quantize_rows(const QuantizeRowsParams<T>& params, Stream stream) {
  if (params.rows == 0) return;
  launch(quantize_rows_kernel<T>, {dim3(static_cast<unsigned>(params.rows)), dim3(kQuantizeThreads)}, stream, params);
}

template <typename Out>
void scale_products(const ScaleProductsParams<Out>& params, Stream stream) {
  if (params.rows == 0) return;
  const dim3 blocks(static_cast<unsigned>(params.rows),
                    static_cast<unsigned>(ceil_div(params.cols, kScaleThreads * 4)));
  launch(scale_products_kernel<Out>, {blocks, dim3(kScaleThreads)}, stream, params);
}

DenseShape fp8_shape(int outputs, int cols) {
  for (const int size : {outputs, cols}) {
    if (size % 16 == 0) continue;
    throw std::invalid_argument("CUDA fp8 linear: " + std::to_string(size) + " is no multiple of 16");
  }
  return {.outputs = outputs, .cols = cols, .float_out = true, .fp8 = true};
}

template <typename T>
void fp8_linear(DenseProducts& products, const Fp8LinearParams<T>& params, Stream stream) {
  quantize_rows<T>({.in = params.in,
                    .in_stride = params.in_stride,
                    .out = params.quantized,
                    .out_stride = params.cols,
                    .scales = params.scales,
                    .rows = params.rows,
                    .cols = params.cols},
                   stream);
  products.multiply({.shape = fp8_shape(params.outputs, params.cols),
                     .in = params.quantized,
                     .in_stride = params.cols,
                     .weights = params.weights,
                     .out = params.sums,
                     .out_stride = params.outputs,
                     .rows = params.rows},
                    stream);
  scale_products<T>({.products = params.sums,
                     .products_stride = params.outputs,
                     .row_scales = params.scales,
                     .col_scales = params.weight_scales,
                     .bias = params.bias,
                     .out = params.out,
                     .out_stride = params.out_stride,
                     .rows = params.rows,
                     .cols = params.outputs,
                     .adds = params.adds},
                    stream);
}

template void quantize_rows(const QuantizeRowsParams<float>&, Stream);
template void quantize_rows(const QuantizeRowsParams<Bf16>&, Stream);
template void scale_products(const ScaleProductsParams<float>&, Stream);
template void scale_products(const ScaleProductsParams<Bf16>&, Stream);
template void fp8_linear(DenseProducts&, const Fp8LinearParams<float>&, Stream);
template void fp8_linear(DenseProducts&, const Fp8LinearParams<Bf16>&, Stream);

}  // namespace llmsrv::cuda
