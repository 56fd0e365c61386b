#include "cuda/library/nccl.h"

namespace llmsrv::cuda::nccl {
namespace {

template <typename Function>
void bind(const NvidiaLibrary& library, const char* name, Function*& function) {
  function = library.function<Function>(name);
}

}  // namespace

Functions::Functions(const NvidiaLibrary& library) {
  bind(library, "ncclGetVersion", version);
  bind(library, "ncclGetErrorString", text);
  bind(library, "ncclGetUniqueId", make_id);
  bind(library, "ncclCommInitRankConfig", create);
  bind(library, "ncclCommGetAsyncError", state);
  bind(library, "ncclCommFinalize", finalize);
  bind(library, "ncclCommDestroy", destroy);
  bind(library, "ncclCommAbort", abort);
  bind(library, "ncclAllReduce", all_reduce);
  bind(library, "ncclAllGather", all_gather);
}

LibrarySearch search_beside(const std::string& file) {
  return {"libnccl.so.2", wheel_folders(file, "nccl"), "pip install \"llmsrv[cuda13]\" brings it"};
}

}  // namespace llmsrv::cuda::nccl
