#include "cpp/base/processors.h"

#include <sched.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <string>
#include <utility>

namespace llmsrv {

std::vector<int> core_processors() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return {0};

  std::set<std::pair<int, int>> cores;  // (package, core) of those found so far
  std::vector<int> processors;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const std::string topology = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    std::ifstream package_file(topology + "physical_package_id");
    std::ifstream core_file(topology + "core_id");
    int package = 0;
    int core = 0;
    // A system that does not say has no hyperthreads for us.
    const bool is_known = (package_file >> package) && (core_file >> core);
    if (!is_known || cores.emplace(package, core).second) processors.push_back(cpu);
  }
  if (processors.empty()) processors.push_back(0);
  return processors;
}

void run_on(int processor) {
  if (processor < 0 || processor >= CPU_SETSIZE) return;
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(processor, &only);
  sched_setaffinity(0, sizeof(only), &only);
}

void run_anywhere() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(getpid(), sizeof(allowed), &allowed) == 0) sched_setaffinity(0, sizeof(allowed), &allowed);
}

}  // namespace llmsrv
