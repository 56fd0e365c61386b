// The table of products: linear layers by cuBLASLt. The emulated build has the same table over a stand-in.
#pragma once

#include "cpp/ops/plugin.h"
#include "cuda/library/cublaslt.h"

namespace llmsrv::cuda {

const device::ProductTable& product_table();

// Opens the library. Each build has its own, and says where it looks. Throws LibraryError.
cublaslt::Functions open_cublaslt();

}  // namespace llmsrv::cuda
