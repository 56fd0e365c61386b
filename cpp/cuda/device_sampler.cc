#include "cpp/cuda/device_sampler.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>
#include <utility>

#include "cpp/base/check.h"
#include "cpp/base/counter_rng.h"

namespace llmsrv {
namespace {

using Biases = std::span<const std::pair<TokenId, float>>;

// Bounds a piece where many long contexts are penalized; more of them are drawn in turn.
constexpr std::size_t kWordsMost = std::size_t{1} << 22;
constexpr std::size_t kForbiddenMost = 1024;  // stop ids of a request, beside the model's own

std::size_t rows_most(const StepLimits& limits) { return static_cast<std::size_t>(limits.result_rows); }
std::size_t vocab_of(const StepLimits& limits) { return static_cast<std::size_t>(limits.result_cols); }

// One row always fits: its context, ids that are allowed, biased (with their biases) and the model's own stop ids.
std::size_t words_room(const StepLimits& limits) {
  const auto context = static_cast<std::size_t>(limits.context_len);
  const std::size_t one_row = context + 4 * vocab_of(limits) + kForbiddenMost;
  return std::max(one_row, std::min(rows_most(limits) * context, kWordsMost));
}

std::size_t checked_words_room(const Device& device, const StepLimits& limits) {
  const device::LaunchTable& launches = device.launches();
  if (limits.result_cols > launches.vocab_max) {
    throw std::invalid_argument("CUDA draws from at most " + std::to_string(launches.vocab_max) + " tokens");
  }
  if (limits.top_logprobs > launches.top_logprobs_max) {
    throw std::invalid_argument("max_logprobs is at most " + std::to_string(launches.top_logprobs_max) + " on CUDA");
  }
  return words_room(limits);
}

// What a row's penalties read: nothing else of its tokens goes to the device.
struct RowLists {
  std::span<const TokenId> prompt;
  std::span<const TokenId> output;
  std::span<const TokenId> forbidden;
  std::span<const TokenId> allowed;
  Biases biased;

  explicit RowLists(const SampleRow& row)
      : forbidden(row.forbidden), allowed(row.params->allowed_token_ids), biased(row.params->logit_bias) {
    const bool repeats = row.params->repetition_penalty != 1.0f;
    if (repeats) prompt = row.prompt;
    if (repeats || row.params->frequency_penalty != 0.0f || row.params->presence_penalty != 0.0f) output = row.output;
  }
  std::size_t words() const {
    return prompt.size() + output.size() + forbidden.size() + allowed.size() + 2 * biased.size();
  }
};

// Puts lists one behind the other.
class WordWriter {
 public:
  explicit WordWriter(std::int32_t* words) : words_(words), end_(words) {}

  device::IdList add(std::span<const TokenId> ids) {
    const device::IdList list = next(ids.size());
    end_ = std::copy(ids.begin(), ids.end(), end_);
    return list;
  }
  device::IdList add(Biases biases) {
    const device::IdList list = next(biases.size());
    for (const auto& [id, bias] : biases) *end_++ = id;
    for (const auto& [id, bias] : biases) *end_++ = std::bit_cast<std::int32_t>(bias);
    return list;
  }
  const std::int32_t* end() const { return end_; }

 private:
  device::IdList next(std::size_t count) const {
    return {static_cast<std::int32_t>(end_ - words_), static_cast<std::int32_t>(count)};
  }
  std::int32_t* words_;
  std::int32_t* end_;
};

device::SampleRow row_on_device(const SampleRow& row, WordWriter& words) {
  const SamplingParams& params = *row.params;
  const RowLists lists(row);
  return {.uniform = counter_uniform(row.seed, row.choice, row.place()),
          .temperature = params.temperature,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .top_k = params.top_k,
          .prompt = words.add(lists.prompt),
          .output = words.add(lists.output),
          .forbidden = words.add(lists.forbidden),
          .allowed = words.add(lists.allowed),
          .biased = words.add(lists.biased),
          .repetition = params.repetition_penalty,
          .frequency = params.frequency_penalty,
          .presence = params.presence_penalty,
          .pending = row.pending.value_or(-1),
          .changes = params.changes_logits() || !row.forbidden.empty() ? 1 : 0};
}

device::Rows rows_on_device(const TensorView& logits) {
  return {logits.data, device::Element::kF32, logits.rows, logits.cols, logits.row_stride};
}

}  // namespace

std::size_t DeviceSampler::input_bytes(const StepLimits& limits) {
  return rows_most(limits) * (sizeof(device::SampleRow) + sizeof(device::LogprobRow)) +
         words_room(limits) * sizeof(std::int32_t);
}

std::size_t DeviceSampler::result_bytes(const StepLimits& limits) {
  const Layout most{rows_most(limits), rows_most(limits), static_cast<std::size_t>(limits.top_logprobs)};
  return most.words() * sizeof(std::int32_t);
}

std::size_t DeviceSampler::weights_bytes(const StepLimits& limits) {
  return rows_most(limits) * vocab_of(limits) * sizeof(float);
}

std::size_t DeviceSampler::bytes(const StepLimits& limits) {
  return input_bytes(limits) + weights_bytes(limits) + result_bytes(limits) + rows_most(limits) * sizeof(std::int32_t);
}

DeviceSampler::DeviceSampler(const Device& device, const StepLimits& limits)
    : device_(device),
      words_room_(checked_words_room(device, limits)),
      staging_(device, input_bytes(limits)),
      inputs_(device, input_bytes(limits), MemoryPlace::kDevice),
      weights_(device, weights_bytes(limits), MemoryPlace::kDevice),
      results_(device, result_bytes(limits), MemoryPlace::kDevice),
      tokens_(device, rows_most(limits) * sizeof(std::int32_t), MemoryPlace::kDevice),
      sampled_(rows_most(limits)) {
  for (std::unique_ptr<Draw>& draw : draws_) {
    draw = std::make_unique<Draw>(device, result_bytes(limits), rows_most(limits));
  }
}

void DeviceSampler::draw(TensorView logits, std::span<const SampleRow> rows, const DeviceStream& stream) {
  Draw& draw = *draws_[asked_++ % draws_.size()];
  draw.layout = layout_of(rows, logits.cols, draw.top_counts);
  const std::size_t bytes = draw.layout.words() * sizeof(std::int32_t);
  LLMSRV_CHECK(rows.size() <= sampled_.size() && bytes <= draw.results.size());
  Piece piece;
  while (piece.first < rows.size()) {
    const std::span<const SampleRow> left = rows.subspan(piece.first);
    piece.rows = left.first(rows_that_fit(left));
    piece.logits = logits.slice_rows(static_cast<int>(piece.first), static_cast<int>(piece.rows.size()));
    piece.told += draw_piece(piece, draw.layout, stream);
    piece.first += piece.rows.size();
  }
  stream.copy(tokens_.data(), results_.data(), rows.size() * sizeof(std::int32_t));
  stream.copy(draw.results.data(), results_.data(), bytes);
  draw.done.record(stream);
}

DeviceSampler::Layout DeviceSampler::layout_of(std::span<const SampleRow> rows, int vocab,
                                               std::vector<std::optional<int>>& top_counts) {
  Layout layout{.rows = rows.size()};
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const std::optional<int> wanted = rows[row].top_logprobs;
    top_counts[row] = wanted ? std::optional(std::min(*wanted, vocab)) : std::nullopt;
    if (!wanted) continue;
    ++layout.told;
    layout.stride = std::max(layout.stride, static_cast<std::size_t>(*top_counts[row]));
  }
  return layout;
}

std::size_t DeviceSampler::rows_that_fit(std::span<const SampleRow> rows) const {
  std::size_t words = 0;
  std::size_t count = 0;
  while (count < rows.size() && (words += RowLists(rows[count]).words()) <= words_room_) ++count;
  LLMSRV_CHECK(count > 0);
  return count;
}

// Returns how many rows of the piece tell log-probabilities.
std::size_t DeviceSampler::draw_piece(const Piece& piece, const Layout& layout, const DeviceStream& stream) {
  std::byte* staged = staging_.next();
  auto* rows = reinterpret_cast<device::SampleRow*>(staged);
  auto* telling = reinterpret_cast<device::LogprobRow*>(rows + piece.rows.size());
  std::size_t told = 0;
  for (std::size_t row = 0; row < piece.rows.size(); ++row) {
    const std::optional<int> wanted = piece.rows[row].top_logprobs;
    if (wanted) telling[told++] = {static_cast<std::int32_t>(row), std::min(*wanted, piece.logits.cols)};
  }
  auto* words = reinterpret_cast<std::int32_t*>(telling + told);
  WordWriter writer(words);
  for (std::size_t row = 0; row < piece.rows.size(); ++row) rows[row] = row_on_device(piece.rows[row], writer);
  const auto* end = reinterpret_cast<const std::byte*>(writer.end());
  staging_.copy(inputs_.data(), static_cast<std::size_t>(end - staged), stream);

  const auto on_device = [&]<typename T>(const T* place) {
    return reinterpret_cast<const T*>(inputs_.data() + (reinterpret_cast<const std::byte*>(place) - staged));
  };
  std::int32_t* tokens = result_words(piece.first);
  const device::Sample launch{rows_on_device(piece.logits),
                              on_device(rows),
                              on_device(words),
                              this->tokens(),
                              reinterpret_cast<float*>(weights_.data()),
                              tokens,
                              result_words(layout.rows + piece.first)};
  device_.check(device_.launches().sample(&launch, stream.handle()));
  if (told > 0) tell(piece, layout, {on_device(telling), told}, stream);
  return told;
}

void DeviceSampler::tell(const Piece& piece, const Layout& layout, std::span<const device::LogprobRow> rows,
                         const DeviceStream& stream) {
  const std::size_t first_top = layout.top_tokens() + piece.told * layout.stride;
  const device::Logprobs launch{rows_on_device(piece.logits),
                                rows.data(),
                                static_cast<std::int32_t>(rows.size()),
                                result_words(piece.first),
                                reinterpret_cast<float*>(result_words(layout.logprobs() + piece.told)),
                                result_words(layout.logprobs() + layout.told + piece.told),
                                result_words(first_top),
                                reinterpret_cast<float*>(result_words(first_top + layout.told * layout.stride)),
                                static_cast<std::int32_t>(layout.stride)};
  device_.check(device_.launches().logprobs(&launch, stream.handle()));
}

std::span<const Sampled> DeviceSampler::drawn() {
  const Draw& draw = oldest();
  ++taken_;
  const Layout& layout = draw.layout;
  const auto* words = reinterpret_cast<const std::int32_t*>(draw.results.data());
  const auto real = [&](std::size_t place) { return std::bit_cast<float>(words[place]); };
  std::size_t told = 0;
  for (std::size_t row = 0; row < layout.rows; ++row) {
    Sampled& sampled = sampled_[row];
    sampled.token = words[row];
    sampled.finite = words[layout.rows + row] != 0;
    sampled.logprob.reset();
    const std::optional<int>& top_count = draw.top_counts[row];
    if (!top_count) continue;
    const std::size_t place = layout.logprobs() + told;
    TokenLogprob logprob{sampled.token, real(place), words[place + layout.told], {}};
    const std::size_t first_top = layout.top_tokens() + told * layout.stride;
    for (std::size_t i = first_top; i < first_top + static_cast<std::size_t>(*top_count); ++i) {
      logprob.top.emplace_back(words[i], real(i + layout.told * layout.stride));
    }
    if (sampled.finite) sampled.logprob = std::move(logprob);
    ++told;
  }
  return std::span(sampled_).first(layout.rows);
}

}  // namespace llmsrv
