#include "cuda/library/nccl.h"

namespace llmsrv::cuda::nccl {

Functions::Functions(const NvidiaLibrary& library) {
  library.bind("ncclGetVersion", version);
  library.bind("ncclGetErrorString", text);
  library.bind("ncclGetUniqueId", make_id);
  library.bind("ncclCommInitRankConfig", create);
  library.bind("ncclCommGetAsyncError", state);
  library.bind("ncclCommFinalize", finalize);
  library.bind("ncclCommDestroy", destroy);
  library.bind("ncclCommAbort", abort);
  library.bind("ncclAllReduce", all_reduce);
  library.bind("ncclAllGather", all_gather);
}

LibrarySearch search_beside(const std::string& file) {
  return {"libnccl.so.2", wheel_folders(file, "nccl"), "pip install \"llmsrv[cuda13]\" brings it"};
}

}  // namespace llmsrv::cuda::nccl
