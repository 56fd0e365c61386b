// llmsrv._testing: parts of the core, one by one, for tests and benchmarks. Never part of a release.
#include "python/bindings/testing/testing.h"

PYBIND11_MODULE(_testing, module) {
  llmsrv::testing::register_team(module);
  llmsrv::testing::register_quant(module);
  llmsrv::testing::register_ops(module);
  llmsrv::testing::register_sched(module);
  llmsrv::testing::register_scheduler_sim(module);
  llmsrv::testing::register_sample(module);
  llmsrv::testing::register_model(module);
  llmsrv::testing::register_engine(module);
  llmsrv::testing::register_bench(module);
  llmsrv::testing::register_device(module);
  llmsrv::testing::register_cuda(module);
}
