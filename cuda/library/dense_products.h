// out[t, n] (+)= sum_k x[t, k] w[n, k] of plain rows, bf16 or e4m3, by cuBLASLt.
//
// Deterministic (promise P3): every number of rows takes the one algorithm of its layer shape, found for
// kReferenceRows rows among those that never split a sum; so the order of a row's sums does not depend on how many rows
// there are. Otherwise each number of rows takes the best algorithm of its step in powers of two.
// Either way a layer has other bits than by packed products, which keep a file's weights exactly: a layer goes one way
// or the other, at any number of rows.
//
// Owns its handle and descriptions; the workspace belongs to the caller and outlives it.
// Thread rule: one caller at a time. prepare() before the first multiply() of a shape, and outside of a captured graph:
// multiply() looks nothing up and allocates nothing.
#pragma once

#include <memory>
#include <vector>

#include "cuda/library/cublaslt.h"

namespace llmsrv::cuda {

struct DenseShape {
  int outputs = 0;  // n
  int cols = 0;     // k
  bool float_out = false;
  // Both factors are e4m3, unscaled: on compute capability 8.9 and later, for outputs and columns in multiples of 16.
  bool fp8 = false;
  bool operator==(const DenseShape&) const = default;
};

struct DenseProduct {
  DenseShape shape;
  const void* in = nullptr;  // [rows, cols]; row t starts at t * in_stride
  int in_stride = 0;
  const void* weights = nullptr;  // [outputs, cols], back to back
  void* out = nullptr;            // [rows, outputs]; row t starts at t * out_stride
  int out_stride = 0;
  int rows = 0;
  bool adds = false;  // to what is there
};

class DenseProducts {
 public:
  static constexpr int kReferenceRows = 512;
  static constexpr std::size_t kAlignment = 16;  // bytes, of all pointers and rows

  struct Options {
    bool deterministic = true;
    void* workspace = nullptr;
    std::size_t workspace_bytes = 0;  // 32 MiB suit Hopper, 4 MiB its elders
  };
  // Throws LibraryError when the library has no handle to give.
  DenseProducts(const cublaslt::Functions& functions, const Options& options);
  ~DenseProducts();
  DenseProducts(const DenseProducts&) = delete;
  DenseProducts& operator=(const DenseProducts&) = delete;

  // Finds the algorithms for up to `rows_max` rows, unless they were found. Throws LibraryError when there is none.
  void prepare(const DenseShape& shape, int rows_max);

  // REQUIRES: prepared for this shape and so many rows
  void multiply(const DenseProduct& product, cudaStream_t stream);

 private:
  struct Plan;

  const Plan* find_plan(const DenseShape& shape, int rows) const;
  void set_rows(const Plan& plan, int rows, int in_stride, int out_stride) const;
  cublaslt::Algorithm find(const Plan& plan) const;
  void require(cublaslt::Status status, const char* what) const;

  const cublaslt::Functions functions_;
  const Options options_;
  cublaslt::Handle handle_ = nullptr;
  std::vector<std::unique_ptr<Plan>> plans_;
};

}  // namespace llmsrv::cuda
