#include "cuda/conformance/peaks.h"

namespace llmsrv::cuda {
namespace {

constexpr int kCopyThreads = 512;
constexpr int kChunksAtOnce = 4;  // loads in flight in a thread

__global__ void __launch_bounds__(kCopyThreads) copy_chunks_kernel(const uint4* in, uint4* out, std::size_t chunks) {
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * kChunksAtOnce * kCopyThreads + threadIdx.x;
  uint4 values[kChunksAtOnce];
  LLMSRV_UNROLL
  for (int i = 0; i < kChunksAtOnce; ++i) {
    const std::size_t at = first + static_cast<std::size_t>(i) * kCopyThreads;
    if (at < chunks) values[i] = in[at];
  }
  LLMSRV_UNROLL
  for (int i = 0; i < kChunksAtOnce; ++i) {
    const std::size_t at = first + static_cast<std::size_t>(i) * kCopyThreads;
    if (at < chunks) out[at] = values[i];
  }
}

__global__ void __launch_bounds__(kPeakWarps* kWarpThreads) multiply_in_registers_kernel(float* out, int rounds) {
  // Ordinary numbers: zeros draw less power, and a device would run faster than it can with data.
  const std::uint32_t seed = (blockIdx.x * kPeakWarps * kWarpThreads + threadIdx.x) * 2654435761u;
  std::uint32_t a[4];
  std::uint32_t b[2];
  LLMSRV_UNROLL
  for (int i = 0; i < 4; ++i) a[i] = (seed >> i & 0x807f807fu) | 0x3f003f00u;
  LLMSRV_UNROLL
  for (int i = 0; i < 2; ++i) b[i] = (seed >> (i + 4) & 0x807f807fu) | 0x3f003f00u;
  float sums[kPeakProducts][4] = {};
  for (int round = 0; round < rounds; ++round) {
    LLMSRV_UNROLL
    for (int i = 0; i < kPeakProducts; ++i) multiply_add(sums[i], a, b);
  }
  float total = 0.0f;
  LLMSRV_UNROLL
  for (int i = 0; i < kPeakProducts; ++i) total += sums[i][0] + sums[i][1] + sums[i][2] + sums[i][3];
  out[blockIdx.x * kPeakWarps * kWarpThreads + threadIdx.x] = total;
}

}  // namespace

void copy_chunks(const uint4* in, uint4* out, std::size_t chunks, Stream stream) {
  constexpr std::size_t kOfBlock = std::size_t{kChunksAtOnce} * kCopyThreads;
  const auto blocks = static_cast<unsigned>((chunks + kOfBlock - 1) / kOfBlock);
  launch(copy_chunks_kernel, {dim3(blocks), dim3(kCopyThreads)}, stream, in, out, chunks);
}

void multiply_in_registers(float* out, int blocks, int rounds, Stream stream) {
  launch(multiply_in_registers_kernel, {dim3(static_cast<unsigned>(blocks)), dim3(kPeakWarps * kWarpThreads)}, stream,
         out, rounds);
}

}  // namespace llmsrv::cuda
