#include "cuda/launch/linear.h"

#include "cuda/launch/packed_format.h"

namespace llmsrv::cuda {
namespace {

template <PackedFormat kFormat, int kTokenTiles, typename Out>
void launch_tiles(const PackedLinearParams<Out>& params, Stream stream) {
  const dim3 blocks(static_cast<unsigned>(ceil_div(params.outputs, packed::kPanelRows)),
                    static_cast<unsigned>(ceil_div(params.tokens, kTokenTiles * kTileTokens)));
  launch(packed_linear_kernel<kFormat, kTokenTiles, Out>, {blocks, dim3(kLinearThreads)}, stream, params);
}

template <PackedFormat kFormat, typename Out>
void launch_gemm(const PackedLinearParams<Out>& params, Stream stream) {
  const int panels = ceil_div(params.outputs, packed::kPanelRows);
  const dim3 blocks(static_cast<unsigned>(ceil_div(panels, kGemmWarps)),
                    static_cast<unsigned>(ceil_div(params.tokens, kGemmTokens)));
  launch(packed_gemm_kernel<kFormat, Out>, {blocks, dim3(kGemmThreads)}, stream, params);
}

// The least power of two of places that takes all tokens, or all places.
int token_places(int tokens) {
  int places = 1;
  while (places < kFloatPlaces && places * kFloatTokens < tokens) places *= 2;
  return places;
}

}  // namespace

// More tokens to a block read the matrix less often and leave fewer blocks; the sums are the same.
template <typename Out>
void packed_linear(const PackedLinearParams<Out>& params, PackedFormat format, Stream stream) {
  if (params.cols % packed::kGroupCols != 0) {
    throw std::invalid_argument("CUDA linear: " + std::to_string(params.cols) + " columns are no multiple of 32");
  }
  if (format == PackedFormat::kF32) {
    throw std::invalid_argument("CUDA linear: tensor cores take no float32 weights; float inputs do");
  }
  if (params.tokens == 0) return;
  with_format(format, [&](auto constant) {
    constexpr PackedFormat kFormat = decltype(constant)::kValue;
    if constexpr (kFormat != PackedFormat::kF32) {
      if (params.tokens <= kTileTokens) return launch_tiles<kFormat, 1>(params, stream);
      if (params.tokens <= 4 * kTileTokens) return launch_tiles<kFormat, 4>(params, stream);
      launch_gemm<kFormat>(params, stream);
    }
  });
}

void float_linear(const PackedLinearParams<float, float>& params, PackedFormat format, Stream stream) {
  require_cols("linear", params.cols, format);
  if (params.tokens == 0) return;
  const int places = token_places(params.tokens);
  const int panels = ceil_div(params.outputs, packed::kPanelRows);
  const dim3 blocks(static_cast<unsigned>(ceil_div(panels, kFloatPlaces / places)),
                    static_cast<unsigned>(ceil_div(params.tokens, places * kFloatTokens)));
  with_format(format, [&](auto constant) {
    launch(float_linear_kernel<decltype(constant)::kValue>, {blocks, dim3(kFloatThreads)}, stream, params, places);
  });
}

void unpack(const UnpackParams& params, PackedFormat format, Stream stream) {
  require_cols("unpacking", params.cols, format);
  if (params.outputs == 0) return;
  const dim3 blocks(static_cast<unsigned>(ceil_div(params.outputs, packed::kPanelRows)),
                    static_cast<unsigned>(ceil_div(params.cols, kUnpackGroups * packed::kGroupCols)));
  with_format(format, [&](auto constant) {
    launch(unpack_kernel<decltype(constant)::kValue>, {blocks, dim3(kUnpackThreads)}, stream, params);
  });
}

template void packed_linear(const PackedLinearParams<float>&, PackedFormat, Stream);
template void packed_linear(const PackedLinearParams<Bf16>&, PackedFormat, Stream);

}  // namespace llmsrv::cuda
