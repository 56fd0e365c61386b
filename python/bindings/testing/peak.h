// The most that one thread of this machine can do, without any memory in the way.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace llmsrv::testing {

// One way to multiply and add. run(rounds) does `operations_per_round` of them (a multiply and an add count as two)
// per round; its result must be used.
struct PeakKernel {
  std::string name;
  double operations_per_round;
  float (*run)(long rounds);
};

// Those that this machine has: of "f32 fma (avx512)", "bf16 dot (avx512)", "int8 dot (avx512)", "f32 fma (avx2)",
// "f32".
std::vector<PeakKernel> peak_kernels();

// Reads all of `data` once; the result must be used.
std::size_t read_all(const std::byte* data, std::size_t bytes);

}  // namespace llmsrv::testing
