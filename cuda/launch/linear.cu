#include "cuda/launch/linear.h"

namespace llmsrv::cuda {
namespace {

template <PackedFormat kFormat, int kTokenTiles, typename Out>
void launch_tiles(const PackedLinearParams<Out>& params, Stream stream) {
  const dim3 blocks(static_cast<unsigned>(ceil_div(params.outputs, packed::kPanelRows)),
                    static_cast<unsigned>(ceil_div(params.tokens, kTokenTiles * kTileTokens)));
  launch(packed_linear_kernel<kFormat, kTokenTiles, Out>, {blocks, dim3(kLinearThreads)}, stream, params);
}

// More tokens to a block read the matrix less often and need more registers; the sums are the same.
template <PackedFormat kFormat, typename Out>
void launch_format(const PackedLinearParams<Out>& params, Stream stream) {
  if (params.tokens <= kTileTokens) return launch_tiles<kFormat, 1>(params, stream);
  launch_tiles<kFormat, 4>(params, stream);
}

}  // namespace

template <typename Out>
void packed_linear(const PackedLinearParams<Out>& params, PackedFormat format, Stream stream) {
  if (params.cols % packed::kGroupCols != 0) {
    throw std::invalid_argument("CUDA linear: " + std::to_string(params.cols) + " columns are no multiple of 32");
  }
  if (params.tokens == 0) return;
  switch (format) {
    case PackedFormat::kBf16:
      return launch_format<PackedFormat::kBf16>(params, stream);
    case PackedFormat::kU4:
      return launch_format<PackedFormat::kU4>(params, stream);
    case PackedFormat::kU4Zero:
      return launch_format<PackedFormat::kU4Zero>(params, stream);
    case PackedFormat::kU5:
      return launch_format<PackedFormat::kU5>(params, stream);
    case PackedFormat::kU5Zero:
      return launch_format<PackedFormat::kU5Zero>(params, stream);
    case PackedFormat::kS8:
      return launch_format<PackedFormat::kS8>(params, stream);
    case PackedFormat::kU4K:
      return launch_format<PackedFormat::kU4K>(params, stream);
    case PackedFormat::kU5K:
      return launch_format<PackedFormat::kU5K>(params, stream);
    case PackedFormat::kU6K:
      return launch_format<PackedFormat::kU6K>(params, stream);
  }
}

template void packed_linear(const PackedLinearParams<float>&, PackedFormat, Stream);
template void packed_linear(const PackedLinearParams<Bf16>&, PackedFormat, Stream);

}  // namespace llmsrv::cuda
