// llmsrv._testing: parts of the core, one by one, for tests and benchmarks. Never part of a release.
#include "python/bindings/testing/testing.h"

PYBIND11_MODULE(_testing, m) {
  llmsrv::testing::register_quant(m);
  llmsrv::testing::register_ops(m);
  llmsrv::testing::register_bench(m);
}
