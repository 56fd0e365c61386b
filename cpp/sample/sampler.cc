#include "cpp/sample/sampler.h"

#include <algorithm>
#include <cmath>

#include "cpp/base/check.h"
#include "cpp/base/counter_rng.h"
#include "cpp/sample/logprobs.h"
#include "cpp/sample/row_scan.h"

namespace llmsrv {
namespace {

// The first of the largest values: ties go to the lower id.
TokenId argmax(std::span<const float> logits) {
  return static_cast<TokenId>(std::find(logits.begin(), logits.end(), row_max(logits)) - logits.begin());
}

}  // namespace

Sampler::Sampler(int vocab_size, int max_rows, ThreadPool& pool)
    : vocab_size_(vocab_size), pool_(pool), scratch_(static_cast<std::size_t>(pool.size())) {
  const auto vocab = static_cast<std::size_t>(vocab_size);
  for (Scratch& scratch : scratch_) {
    scratch.logits.resize(vocab);
    scratch.candidates.reserve(vocab);
    scratch.counts.assign(vocab, 0);
  }
  results_.resize(static_cast<std::size_t>(max_rows));
}

std::size_t Sampler::workspace_bytes(int vocab_size, int threads) {
  return static_cast<std::size_t>(vocab_size) * static_cast<std::size_t>(threads) *
         (sizeof(float) + sizeof(Candidate) + sizeof(std::int32_t));
}

std::span<const Sampled> Sampler::sample(TensorView logits, std::span<const SampleRow> rows) {
  LLMSRV_CHECK(logits.cols == vocab_size_);
  LLMSRV_CHECK(logits.rows == static_cast<int>(rows.size()) && rows.size() <= results_.size());
  pool_.run([&](int member) {
    const ThreadPool::Range share = pool_.share(logits.rows, member);
    for (int row = share.begin; row < share.end; ++row) {
      const auto index = static_cast<std::size_t>(row);
      sample_row({logits.f32_row(row), static_cast<std::size_t>(vocab_size_)}, rows[index],
                 scratch_[static_cast<std::size_t>(member)], results_[index]);
    }
  });
  return {results_.data(), rows.size()};
}

void Sampler::sample_row(std::span<const float> logits, const SampleRow& row, Scratch& scratch, Sampled& result) {
  result.logprob.reset();
  result.finite = all_finite(logits);
  if (!result.finite) return;
  const SamplingParams& params = *row.params;
  if (params.temperature == 0.0f && !params.changes_logits() && row.forbidden.empty()) {
    result.token = argmax(logits);
  } else {
    std::copy(logits.begin(), logits.end(), scratch.logits.begin());
    apply_penalties(params, row.prompt, row.output, row.forbidden, scratch.counts, scratch.logits);
    result.token = params.temperature == 0.0f ? argmax(scratch.logits) : draw(row, scratch);
  }
  if (row.top_logprobs) result.logprob = token_logprob(logits, result.token, *row.top_logprobs);
}

TokenId Sampler::draw(const SampleRow& row, Scratch& scratch) {
  // Weights relative to the likeliest token: exp((logit - max) / temperature).
  const float max = row_max(scratch.logits);
  const float min_weight = row.params->min_p;
  scratch.candidates.clear();
  for (std::size_t i = 0; i < scratch.logits.size(); ++i) {
    const float weight = std::exp((scratch.logits[i] - max) / row.params->temperature);
    if (weight > 0.0f && weight >= min_weight) scratch.candidates.push_back({weight, static_cast<TokenId>(i)});
  }
  cut(*row.params, scratch);

  double total = 0.0;
  for (const Candidate& candidate : scratch.candidates) total += static_cast<double>(candidate.value);
  const auto position = static_cast<std::uint32_t>(row.prompt.size() + row.output.size());
  double left = counter_uniform(row.seed, row.choice, position) * total;
  for (const Candidate& candidate : scratch.candidates) {
    left -= static_cast<double>(candidate.value);
    if (left < 0.0) return candidate.token;
  }
  return scratch.candidates.back().token;  // rounding left a crumb
}

bool Sampler::likelier(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.token < b.token);
}

// Drops what top_k and top_p exclude; what is left is sorted, likeliest first, ties by id.
void Sampler::cut(const SamplingParams& params, Scratch& scratch) {
  std::vector<Candidate>& candidates = scratch.candidates;
  const auto top_k = static_cast<std::size_t>(params.top_k);
  const bool cuts_k = params.top_k > 0 && top_k < candidates.size();
  if (cuts_k) {
    std::nth_element(candidates.begin(), candidates.begin() + params.top_k, candidates.end(), likelier);
    candidates.resize(top_k);
  }
  if (params.top_p < 1.0f) {
    cut_top_p(params.top_p, candidates);
  } else if (cuts_k) {
    std::sort(candidates.begin(), candidates.end(), likelier);
  }
}

// Keeps the shortest likeliest-first prefix whose mass reaches top_p (Holtzman et al., arXiv 1904.09751).
void Sampler::cut_top_p(float top_p, std::vector<Candidate>& candidates) {
  double total = 0.0;
  for (const Candidate& candidate : candidates) total += static_cast<double>(candidate.value);
  // The prefix is nearly always short: sort in growing pieces instead of the whole vocabulary.
  constexpr std::size_t kFirstPiece = 256;
  double mass = 0.0;
  std::size_t sorted = 0;
  for (std::size_t piece = kFirstPiece; sorted < candidates.size(); piece *= 4) {
    const std::size_t end = std::min(candidates.size(), sorted + piece);
    const auto first = candidates.begin() + static_cast<std::ptrdiff_t>(sorted);
    std::partial_sort(first, candidates.begin() + static_cast<std::ptrdiff_t>(end), candidates.end(), likelier);
    for (; sorted < end; ++sorted) {
      mass += static_cast<double>(candidates[sorted].value);
      if (mass >= static_cast<double>(top_p) * total) {
        candidates.resize(sorted + 1);
        return;
      }
    }
  }
}

}  // namespace llmsrv
