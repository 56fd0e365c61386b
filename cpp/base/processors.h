// The processors that this process may use.
#pragma once

#include <vector>

namespace llmsrv {

// One processor of each physical core that this thread may run on, ascending; never empty. Two hyperthreads of a core
// share what the kernels keep busy.
std::vector<int> core_processors();

// Has the calling thread run on one processor alone. A hint: where the system refuses, the thread stays as it is.
void run_on(int processor);
// Has it run wherever the first thread of the process may: a thread inherits the place of the one that started it.
void run_anywhere();

}  // namespace llmsrv
