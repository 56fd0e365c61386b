// The part of NCCL's C interface, version 2 from 2.14 on, that is used. Declared here because its header comes in a
// package of 200 MB and more.
#pragma once

#include <cuda_runtime.h>

#include <climits>
#include <cstddef>
#include <string>

#include "cuda/library/nvidia_library.h"

namespace llmsrv::cuda::nccl {

using Handle = struct HandleContent*;  // ncclComm_t
using Result = int;                    // ncclResult_t
constexpr Result kSuccess = 0;
constexpr Result kRemoteError = 6;
constexpr Result kInProgress = 7;

// Values of the interface's enumerations.
constexpr int kFloat32 = 7;   // ncclDataType_t
constexpr int kBfloat16 = 9;  // ncclDataType_t
constexpr int kSum = 0;       // ncclRedOp_t

struct Id {  // ncclUniqueId
  char bytes[128];
};

// ncclConfig_t as of 2.14: later ones know its version and fill in what they have added.
struct Config {
  std::size_t bytes = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
  int unset = INT_MIN;
};

struct Functions {
  explicit Functions(const NvidiaLibrary& library);  // throws LibraryError

  Result (*version)(int*);
  const char* (*text)(Result);
  Result (*make_id)(Id*);
  Result (*create)(Handle*, int ranks, Id, int rank, Config*);
  Result (*state)(Handle, Result*);
  Result (*finalize)(Handle);
  Result (*destroy)(Handle);
  Result (*abort)(Handle);
  Result (*all_reduce)(const void* in, void* out, std::size_t count, int type, int operation, Handle, cudaStream_t);
  Result (*all_gather)(const void* in, void* out, std::size_t count_per_rank, int type, Handle, cudaStream_t);
};

// Where the library is looked for when `file` is the plug-in.
LibrarySearch search_beside(const std::string& file);

}  // namespace llmsrv::cuda::nccl
