#include <bit>

#include "cuda/emulation/bindings.h"
#include "cuda/launch/sampling.h"

namespace py = pybind11;

namespace llmsrv::emulation {
namespace {

// The rows' lists, one after the other, as the draw's array has them.
struct Lists {
  std::vector<std::int32_t> words;

  cuda::IdRange add(const std::vector<std::int32_t>& list) {
    const cuda::IdRange range{static_cast<int>(words.size()), static_cast<int>(list.size())};
    words.insert(words.end(), list.begin(), list.end());
    return range;
  }
  cuda::IdRange add(const std::vector<std::pair<std::int32_t, float>>& list) {
    const cuda::IdRange range{static_cast<int>(words.size()), static_cast<int>(list.size())};
    for (const auto& [id, bias] : list) words.push_back(id);
    for (const auto& [id, bias] : list) words.push_back(std::bit_cast<std::int32_t>(bias));
    return range;
  }
};

cuda::SampleRowOnDevice make_row(const py::dict& row, Lists& lists) {
  const auto number = [&](const char* name) { return row[name].cast<float>(); };
  const auto list = [&](const char* name) { return lists.add(row[name].cast<std::vector<std::int32_t>>()); };
  cuda::SampleRowOnDevice made{row["uniform"].cast<double>(),
                               number("temperature"),
                               number("top_p"),
                               number("min_p"),
                               row["top_k"].cast<std::int32_t>(),
                               {}};
  cuda::RowPenalties& penalties = made.penalties;
  penalties.prompt = list("prompt");
  penalties.output = list("output");
  penalties.forbidden = list("forbidden");
  penalties.allowed = list("allowed");
  penalties.biased = lists.add(row["bias"].cast<std::vector<std::pair<std::int32_t, float>>>());
  penalties.repetition = number("repetition");
  penalties.frequency = number("frequency");
  penalties.presence = number("presence");
  penalties.pending = row["pending"].cast<std::int32_t>();
  penalties.any = row["penalizes"].cast<bool>() ? 1 : 0;
  return made;
}

void sample(const py::array& logits, const std::vector<py::dict>& rows, const py::object& allowed,
            const py::array& drawn, const py::array& weights, const py::array& tokens, const py::array& finite) {
  Lists lists;
  std::vector<cuda::SampleRowOnDevice> on_device;
  for (const py::dict& row : rows) on_device.push_back(make_row(row, lists));
  cuda::SampleParams params;
  params.logits = matrix_pointer<float>(logits);
  params.logits_stride = stride_of(logits);
  params.rows = in_reach(on_device);
  params.words = in_reach(lists.words);
  params.drawn = pointer<std::int32_t>(drawn);
  params.allowed = pointer_or_null<std::uint32_t>(allowed);
  params.weights = pointer<float>(weights);
  params.tokens = pointer<std::int32_t>(tokens);
  params.finite = pointer<std::int32_t>(finite);
  params.row_count = rows_of(logits);
  params.vocab = cols_of(logits);
  cuda::sample(params, nullptr);
}

// rows: (row of the logits, number of alternatives) each
void logprobs(const py::array& logits, const std::vector<std::pair<int, int>>& rows, const py::array& tokens,
              const py::array& logprobs, const py::array& ranks, const py::array& top_tokens,
              const py::array& top_logprobs) {
  std::vector<cuda::LogprobRowOnDevice> on_device;
  for (const auto& [row, top_count] : rows) on_device.push_back({row, top_count});
  cuda::LogprobParams params;
  params.logits = matrix_pointer<float>(logits);
  params.logits_stride = stride_of(logits);
  params.rows = in_reach(on_device);
  params.tokens = pointer<std::int32_t>(tokens);
  params.logprobs = pointer<float>(logprobs);
  params.ranks = pointer<std::int32_t>(ranks);
  params.top_tokens = pointer<std::int32_t>(top_tokens);
  params.top_logprobs = pointer<float>(top_logprobs);
  params.top_stride = cols_of(top_tokens);
  params.row_count = static_cast<int>(rows.size());
  params.vocab = cols_of(logits);
  cuda::logprobs(params, nullptr);
}

}  // namespace

void bind_sampling(py::module_& module) {
  module.def("sample", &sample, py::arg("logits"), py::arg("rows"), py::arg("allowed"), py::arg("drawn"),
             py::arg("weights"), py::arg("tokens"), py::arg("finite"));
  module.def("logprobs", &logprobs, py::arg("logits"), py::arg("rows"), py::arg("tokens"), py::arg("logprobs"),
             py::arg("ranks"), py::arg("top_tokens"), py::arg("top_logprobs"));
}

}  // namespace llmsrv::emulation
