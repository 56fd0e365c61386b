#include "cuda/library/cublaslt.h"

#include <type_traits>

namespace llmsrv::cuda::cublaslt {
namespace {

template <typename Function>
void bind(const NvidiaLibrary& library, const char* name, Function*& function) {
  function = library.function<Function>(name);
}

}  // namespace

Functions::Functions(const NvidiaLibrary& library) {
  bind(library, "cublasLtGetVersion", version);
  bind(library, "cublasLtCreate", create);
  bind(library, "cublasLtDestroy", destroy);
  bind(library, "cublasLtMatmulDescCreate", create_operation);
  bind(library, "cublasLtMatmulDescDestroy", destroy_operation);
  bind(library, "cublasLtMatmulDescSetAttribute", set_operation);
  bind(library, "cublasLtMatrixLayoutCreate", create_layout);
  bind(library, "cublasLtMatrixLayoutDestroy", destroy_layout);
  bind(library, "cublasLtMatrixLayoutSetAttribute", set_layout);
  bind(library, "cublasLtMatmulPreferenceCreate", create_preference);
  bind(library, "cublasLtMatmulPreferenceDestroy", destroy_preference);
  bind(library, "cublasLtMatmulPreferenceSetAttribute", set_preference);
  bind(library, "cublasLtMatmulAlgoGetHeuristic", find_algorithms);
  bind(library, "cublasLtMatmul", multiply);
}

LibrarySearch search_beside(const std::string& file) {
  return {"libcublasLt.so.13", wheel_folders(file, "cu13"), "pip install \"llmsrv[cuda13]\" brings it"};
}

}  // namespace llmsrv::cuda::cublaslt
