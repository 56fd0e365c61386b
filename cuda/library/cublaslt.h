// The part of cuBLASLt's C interface, version 13, that is used. Declared here because its own headers come in a package
// of 423 MB, and a build needs nothing else of it.
//
// Matrices are column by column: a matrix of rows that lie one after the other is its transpose.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cuda/library/nvidia_library.h"

namespace llmsrv::cuda::cublaslt {

using Handle = struct HandleContent*;
using Operation = struct OperationContent*;    // cublasLtMatmulDesc_t
using Layout = struct LayoutContent*;          // cublasLtMatrixLayout_t
using Preference = struct PreferenceContent*;  // cublasLtMatmulPreference_t
using Status = int;                            // cublasStatus_t
constexpr Status kSuccess = 0;

// Values of the interface's enumerations.
constexpr int kFloat32 = 0;              // cudaDataType_t
constexpr int kBfloat16 = 14;            // cudaDataType_t
constexpr int kFloat8 = 28;              // cudaDataType_t: e4m3
constexpr int kComputeFloat32 = 68;      // cublasComputeType_t
constexpr std::int32_t kTransposed = 1;  // cublasOperation_t
enum class OperationAttribute : int { kTransposeA = 3, kTransposeB = 4 };
enum class LayoutAttribute : int { kRows = 2, kCols = 3, kStride = 4 };
enum class PreferenceAttribute : int {
  kWorkspaceBytes = 1,
  kReductionSchemes = 3,
  kAlignmentA = 5,
  kAlignmentB = 6,
  kAlignmentC = 7,
  kAlignmentD = 8,
};
constexpr std::uint32_t kNoReduction = 0;  // a sum is one sequence, never split and put together

struct Algorithm {  // cublasLtMatmulAlgo_t
  std::uint64_t data[8];
};
struct HeuristicResult {  // cublasLtMatmulHeuristicResult_t
  Algorithm algorithm;
  std::size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};

struct Functions {
  explicit Functions(const NvidiaLibrary& library);  // throws LibraryError

  std::size_t (*version)();
  Status (*create)(Handle*);
  Status (*destroy)(Handle);
  Status (*create_operation)(Operation*, int compute, int scale_type);
  Status (*destroy_operation)(Operation);
  Status (*set_operation)(Operation, OperationAttribute, const void* value, std::size_t bytes);
  Status (*create_layout)(Layout*, int type, std::uint64_t rows, std::uint64_t cols, std::int64_t stride);
  Status (*destroy_layout)(Layout);
  Status (*set_layout)(Layout, LayoutAttribute, const void* value, std::size_t bytes);
  Status (*create_preference)(Preference*);
  Status (*destroy_preference)(Preference);
  Status (*set_preference)(Preference, PreferenceAttribute, const void* value, std::size_t bytes);
  Status (*find_algorithms)(Handle, Operation, Layout a, Layout b, Layout c, Layout d, Preference, int wanted,
                            HeuristicResult* results, int* found);
  // d = alpha a b + beta c
  Status (*multiply)(Handle, Operation, const void* alpha, const void* a, Layout, const void* b, Layout,
                     const void* beta, const void* c, Layout, void* d, Layout, const Algorithm*, void* workspace,
                     std::size_t workspace_bytes, cudaStream_t);
};

// Where the library is looked for when `file` is the plug-in.
LibrarySearch search_beside(const std::string& file);

}  // namespace llmsrv::cuda::cublaslt
