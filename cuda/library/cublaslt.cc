#include "cuda/library/cublaslt.h"

namespace llmsrv::cuda::cublaslt {

Functions::Functions(const NvidiaLibrary& library) {
  library.bind("cublasLtGetVersion", version);
  library.bind("cublasLtCreate", create);
  library.bind("cublasLtDestroy", destroy);
  library.bind("cublasLtMatmulDescCreate", create_operation);
  library.bind("cublasLtMatmulDescDestroy", destroy_operation);
  library.bind("cublasLtMatmulDescSetAttribute", set_operation);
  library.bind("cublasLtMatrixLayoutCreate", create_layout);
  library.bind("cublasLtMatrixLayoutDestroy", destroy_layout);
  library.bind("cublasLtMatrixLayoutSetAttribute", set_layout);
  library.bind("cublasLtMatmulPreferenceCreate", create_preference);
  library.bind("cublasLtMatmulPreferenceDestroy", destroy_preference);
  library.bind("cublasLtMatmulPreferenceSetAttribute", set_preference);
  library.bind("cublasLtMatmulAlgoGetHeuristic", find_algorithms);
  library.bind("cublasLtMatmul", multiply);
}

LibrarySearch search_beside(const std::string& file) {
  return {"libcublasLt.so.13", wheel_folders(file, "cu13"), "pip install \"llmsrv[cuda13]\" brings it"};
}

}  // namespace llmsrv::cuda::cublaslt
