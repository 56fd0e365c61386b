// Timed loops for bench/: seconds of each call, measured without Python in between.
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <vector>

#include "python/bindings/testing/peak.h"
#include "python/bindings/testing/test_backend.h"
#include "python/bindings/testing/testing.h"

namespace llmsrv::testing {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename Call>
std::vector<double> time_calls(int calls, const Call& call) {
  std::vector<double> seconds;
  for (int i = 0; i < calls; ++i) {
    const double start = now_seconds();
    call(i);
    seconds.push_back(now_seconds() - start);
  }
  return seconds;
}

// Operations per second of every kind that this machine has, on all `threads` together; the best of `calls`.
std::vector<std::pair<std::string, double>> compute_peaks(int threads, int calls) {
  constexpr long kRounds = 200'000;
  ThreadPool pool(threads);
  std::atomic<float> sink{0};
  std::vector<std::pair<std::string, double>> peaks;
  for (const PeakKernel& kernel : peak_kernels()) {
    const std::vector<double> seconds =
        time_calls(calls, [&](int) { pool.run([&](int) { sink.store(kernel.run(kRounds)); }); });
    const double best = *std::min_element(seconds.begin(), seconds.end());
    peaks.emplace_back(kernel.name, kernel.operations_per_round * kRounds * threads / best);
  }
  return peaks;
}

// Bytes per second of each of `calls` reads of `window` bytes by `threads` together, walking through `bytes` of memory.
// Short reads, so that a busy machine interrupts only some of them. REQUIRES: window divides bytes
std::vector<double> read_bandwidths(int threads, std::size_t bytes, std::size_t window, int calls) {
  ThreadPool pool(threads);
  const AlignedBuffer buffer(bytes);
  std::atomic<std::size_t> sink{0};
  std::memset(buffer.data(), 1, bytes);
  const std::size_t part = window / static_cast<std::size_t>(threads) / 64 * 64;
  std::vector<double> rates;
  for (const double seconds : time_calls(calls, [&](int i) {
         const std::byte* from = buffer.data() + static_cast<std::size_t>(i) * window % bytes;
         pool.run([&](int member) { sink += read_all(from + part * static_cast<std::size_t>(member), part); });
       })) {
    rates.push_back(static_cast<double>(part) * threads / seconds);
  }
  return rates;
}

// Seconds of each of `calls` empty team runs.
std::vector<double> time_empty_runs(int threads, int calls) {
  ThreadPool pool(threads);
  return time_calls(calls, [&](int) { pool.run([](int) {}); });
}

// Call i uses weight i mod count: enough of them keep every call's weights out of the caches. `norm`: weights of an RMS
// norm before; `gated`: the input is gates and factors.
std::vector<double> time_linear(TestBackend& test, Floats in, const std::vector<const PackedMatrix*>& weights,
                                Floats out, int calls, const std::optional<Floats>& norm, bool gated) {
  const TensorView in_view = view(in);
  const TensorView out_view = view(out);
  const Prologue prologue = norm ? Prologue(RmsNorm{span(*norm), 1e-5f}) : gated ? Prologue(GatedMul{}) : Prologue();
  return time_calls(calls, [&](int i) {
    const PackedMatrix& weight = *weights[static_cast<std::size_t>(i) % weights.size()];
    test.backend->linear(in_view, prologue, {&weight, 1}, {}, Backend::Accumulate::kStore, out_view);
  });
}

// `sequences` of equal context, each with `rows` new rows; their blocks are consecutive in the cache. Call i uses cache
// i mod count.
std::vector<double> time_attention(TestBackend& test, Floats qkv, const std::vector<KvCache*>& caches, int sequences,
                                   int context_len, float scale, Floats out, int calls) {
  const TensorView in_view = view(qkv);
  const TensorView out_view = view(out);
  const int per_sequence = (context_len + caches[0]->layer.block_size - 1) / caches[0]->layer.block_size;
  const int rows = in_view.rows / sequences;
  std::vector<BlockId> blocks(static_cast<std::size_t>(per_sequence * sequences));
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<BlockId>(i);
  StepInputs inputs;
  inputs.tokens.resize(static_cast<std::size_t>(in_view.rows));
  inputs.block_size = caches[0]->layer.block_size;
  for (int s = 0; s < sequences; ++s) {
    inputs.ranges.push_back({s * rows, rows, context_len, blocks.data() + s * per_sequence});
  }
  std::vector<double> seconds;
  test.backend->run_step(inputs, [&](int) {
    seconds = time_calls(calls, [&](int i) {
      const KvCache& cache = *caches[static_cast<std::size_t>(i) % caches.size()];
      test.backend->paged_attention(in_view, cache.shape, cache.layer, {scale, std::nullopt, std::nullopt}, out_view);
    });
  });
  return seconds;
}

}  // namespace

void register_bench(py::module_& m) {
  m.def("compute_peaks", &compute_peaks, py::arg("threads"), py::arg("calls"));
  m.def("read_bandwidths", &read_bandwidths, py::arg("threads"), py::arg("bytes"), py::arg("window"), py::arg("calls"));
  m.def("time_empty_runs", &time_empty_runs, py::arg("threads"), py::arg("calls"));
  m.def("time_linear", &time_linear, py::arg("backend"), py::arg("x"), py::arg("weights"), py::arg("out"),
        py::arg("calls"), py::kw_only(), py::arg("norm") = std::nullopt, py::arg("gated") = false);
  m.def("time_attention", &time_attention, py::arg("backend"), py::arg("qkv"), py::arg("caches"), py::arg("sequences"),
        py::arg("context_len"), py::arg("scale"), py::arg("out"), py::arg("calls"));
}

}  // namespace llmsrv::testing
