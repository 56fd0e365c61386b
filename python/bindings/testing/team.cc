// A team that works off shares together.
#include <pybind11/stl.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <tuple>
#include <vector>

#include "cpp/base/shared_work.h"
#include "cpp/base/thread_pool.h"
#include "python/bindings/testing/testing.h"

namespace py = pybind11;

namespace llmsrv::testing {
namespace {

using Taken = std::tuple<int, int, int>;  // owner, begin, end

// What each member took of shares of `counts` items, `rounds` times one after the other. Member `stalled`, if there is
// one, keeps its first piece of each round until all other items of that round are done, or for `patience_s`.
std::vector<std::vector<Taken>> work_off_shares(const std::vector<int>& counts, int piece, int rounds,
                                                std::optional<int> stalled, double patience_s) {
  const int members = static_cast<int>(counts.size());
  ThreadPool pool(members);
  SharedWork shared(members);
  std::vector<std::vector<Taken>> taken(counts.size());
  int total = 0;
  for (const int count : counts) total += count;
  for (int round = 0; round < rounds; ++round) {
    std::atomic<int> done{0};
    std::atomic<int> standing{0};
    const auto wait_for = [&](const std::atomic<int>& value, int least) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience_s);
      while (value.load() < least && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    };
    pool.run([&](int member) {
      shared.offer(member, {0, counts[static_cast<std::size_t>(member)]}, piece);
      if (stalled && member != *stalled) wait_for(standing, 1);
      bool is_first = true;
      shared.work_off(member, [&](int owner, ThreadPool::Range items) {
        taken[static_cast<std::size_t>(member)].emplace_back(owner, items.begin, items.end);
        if (member == stalled && is_first) {
          standing = 1;
          wait_for(done, total - (items.end - items.begin));
        }
        is_first = false;
        done += items.end - items.begin;
      });
    });
  }
  return taken;
}

}  // namespace

void register_team(py::module_& m) {
  m.def("work_off_shares", &work_off_shares, py::arg("counts"), py::arg("piece"), py::arg("rounds") = 1,
        py::arg("stalled") = py::none(), py::arg("patience_s") = 30.0, py::call_guard<py::gil_scoped_release>());
}

}  // namespace llmsrv::testing
