#include <algorithm>
#include <limits>

#include "cuda/emulation/cache_arrays.h"
#include "cuda/launch/attention.h"
#include "cuda/launch/attention_hopper.h"

namespace py = pybind11;

namespace llmsrv::emulation {
namespace {

using cuda::Bf16;

// ranges: [n, 3], first row, rows and context of each; block ids of all ranges one after the other.
struct Ranges {
  std::vector<cuda::RangeOnDevice> on_device;
  cuda::AttentionGrid grid;
  int partials = 0;
};

Ranges make_ranges(const py::array& ranges, int block_size, int window) {
  const auto* values = static_cast<const std::int32_t*>(ranges.data());
  Ranges made;
  int block = 0;
  for (int i = 0; i < rows_of(ranges); ++i, values += 3) {
    const cuda::RangeOnDevice range{values[0], values[1], values[2], block, made.partials};
    const int segments = cuda::segments_of(range, window).count;
    block += cuda::ceil_div(range.context_len, block_size);
    made.partials += segments * range.row_count;
    made.grid.rows_max = std::max(made.grid.rows_max, range.row_count);
    made.grid.segments_max = std::max(made.grid.segments_max, segments);
    made.on_device.push_back(range);
  }
  made.grid.ranges = rows_of(ranges);
  return made;
}

void paged_attention(const py::array& queries, const py::array& cache, const KvShape& kv_shape, const py::array& ranges,
                     const py::array& block_ids, const py::array& out, float scale, const py::object& window,
                     const py::object& soft_cap, const std::string& kernel) {
  with_types_of(queries, cache, [&]<typename T, typename Kv>(T, Kv) {
    cuda::AttentionParams<T, Kv> params;
    params.queries = pointer<T>(queries);
    params.query_stride = cols_of(queries);
    params.out = pointer<T>(out);
    params.cache = kv_layout<Kv>(cache, kv_shape);
    params.block_ids = pointer<std::int32_t>(block_ids);
    params.heads = cols_of(out) / params.cache.head_dim;
    params.scale = scale;
    if (!window.is_none()) params.window = window.cast<int>();
    params.has_soft_cap = !soft_cap.is_none();
    if (params.has_soft_cap) params.soft_cap = soft_cap.cast<float>();
    Ranges made = make_ranges(ranges, params.cache.block_size, params.window);
    params.ranges = in_reach(made.on_device);
    if constexpr (std::is_same_v<T, Bf16> && std::is_same_v<Kv, Bf16>) {
      const auto blocks = static_cast<std::size_t>(cache.size()) / params.cache.block_elements();
      if (kernel == "hopper") {
        return cuda::attend_prefill_hopper(params, static_cast<int>(blocks), made.grid, nullptr);
      }
    }
    if (kernel == "prefill") return cuda::attend_prefill(params, made.grid, nullptr);

    const auto count = static_cast<std::size_t>(made.partials * params.heads);
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> sums(count * static_cast<std::size_t>(params.cache.head_dim), kNan);
    std::vector<float> maxima(count, kNan);
    std::vector<float> weights(count, kNan);
    cuda::attend_segments(params, made.grid, {in_reach(sums), in_reach(maxima), in_reach(weights)}, nullptr);
  });
}

}  // namespace

void bind_attention(py::module_& module) {
  module.def("paged_attention", &paged_attention, py::arg("queries"), py::arg("cache"), py::arg("kv_shape"),
             py::arg("ranges"), py::arg("block_ids"), py::arg("out"), py::arg("scale"), py::arg("window"),
             py::arg("soft_cap"), py::arg("kernel"));
}

}  // namespace llmsrv::emulation
