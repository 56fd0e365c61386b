#include "cpp/sample/sampler.h"

#include <algorithm>
#include <limits>

#include "cpp/base/check.h"
#include "cpp/base/counter_rng.h"
#include "cpp/sample/logprobs.h"
#include "cpp/sample/row_scan.h"

namespace llmsrv {
namespace {

// The token that holds `position` of the mass, counted in id order. REQUIRES: some weight is positive
TokenId token_at(double position, std::span<const float> weights) {
  constexpr std::size_t kStride = 1024;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < weights.size(); at += kStride) {
    const double mass = row_sum(weights.subspan(at, std::min(kStride, weights.size() - at)));
    if (mass == 0.0) continue;
    begin = at;
    if (position < mass) break;
    position -= mass;
  }
  std::size_t token = begin;
  for (std::size_t i = begin; i < std::min(begin + kStride, weights.size()); ++i) {
    if (weights[i] == 0.0f) continue;
    token = i;
    position -= static_cast<double>(weights[i]);
    if (position < 0.0) break;
  }
  return static_cast<TokenId>(token);
}

}  // namespace

Sampler::Sampler(int vocab_size, int max_rows, ThreadPool& pool)
    : vocab_size_(vocab_size), pool_(pool), scratch_(static_cast<std::size_t>(pool.size())) {
  const auto vocab = static_cast<std::size_t>(vocab_size);
  for (Scratch& scratch : scratch_) {
    scratch.weights.resize(vocab);
    scratch.block_max.resize((vocab + kBlock - 1) / kBlock);
    scratch.candidates.reserve(vocab);
    scratch.counts.assign(vocab, 0);
  }
  for (Results& results : results_) results.rows.resize(static_cast<std::size_t>(max_rows));
}

std::size_t Sampler::workspace_bytes(int vocab_size, int threads) {
  return static_cast<std::size_t>(vocab_size) * static_cast<std::size_t>(threads) *
         (sizeof(float) + sizeof(float) / kBlock + sizeof(Candidate) + sizeof(std::int32_t));
}

void Sampler::sample(TensorView logits, std::span<const SampleRow> rows) {
  Results& results = results_[sampled_ % results_.size()];
  LLMSRV_CHECK(logits.cols == vocab_size_ && sampled_ - taken_ < kDrawsMost);
  LLMSRV_CHECK(logits.rows == static_cast<int>(rows.size()) && rows.size() <= results.rows.size());
  for (const SampleRow& row : rows) LLMSRV_CHECK(!row.pending);
  pool_.run([&](int member) {
    const ThreadPool::Range share = pool_.share(logits.rows, member);
    for (int row = share.begin; row < share.end; ++row) {
      const auto index = static_cast<std::size_t>(row);
      sample_row({logits.f32_row(row), static_cast<std::size_t>(vocab_size_)}, rows[index],
                 scratch_[static_cast<std::size_t>(member)], results.rows[index]);
    }
  });
  results.count = rows.size();
  ++sampled_;
}

std::span<const Sampled> Sampler::take() {
  LLMSRV_CHECK(taken_ < sampled_);
  const Results& results = results_[taken_++ % results_.size()];
  return std::span(results.rows).first(results.count);
}

void Sampler::sample_row(std::span<const float> logits, const SampleRow& row, Scratch& scratch, Sampled& result) {
  result.logprob.reset();
  result.finite = all_finite(logits);
  if (!result.finite) return;
  const SamplingParams& params = *row.params;
  if (params.temperature == 0.0f && !params.changes_logits() && row.forbidden.empty()) {
    result.token = row_argmax(logits);
  } else {
    std::copy(logits.begin(), logits.end(), scratch.weights.begin());
    apply_penalties(params, row.prompt, row.output, row.forbidden, scratch.counts, scratch.weights);
    result.token = params.temperature == 0.0f ? row_argmax(scratch.weights) : draw(row, scratch);
  }
  if (row.top_logprobs) result.logprob = token_logprob(logits, result.token, *row.top_logprobs);
}

TokenId Sampler::draw(const SampleRow& row, Scratch& scratch) {
  const std::size_t kept = weigh(*row.params, scratch);
  const bool cuts_k = row.params->top_k > 0 && static_cast<std::size_t>(row.params->top_k) < kept;
  const double uniform = counter_uniform(row.seed, row.choice, row.place());
  if (!cuts_k && row.params->top_p >= 1.0f) return token_at(uniform * row_sum(scratch.weights), scratch.weights);

  keep(*row.params, cuts_k, scratch);
  double left = uniform * total_mass(scratch.candidates);
  for (const Candidate& candidate : scratch.candidates) {
    left -= static_cast<double>(candidate.value);
    if (left < 0.0) return candidate.token;
  }
  return scratch.candidates.back().token;  // rounding left a crumb
}

// Turns the logits into weights relative to the likeliest token, exp((logit - max) / temperature), and those that min_p
// drops into 0. Returns how many are left.
std::size_t Sampler::weigh(const SamplingParams& params, Scratch& scratch) {
  const std::span<float> row = scratch.weights;
  const float max = row_max(row);
  std::uint32_t kept = 0;
  for (std::size_t block = 0; block < scratch.block_max.size(); ++block) {
    const std::span<float> weights = row.subspan(block * kBlock, std::min(kBlock, row.size() - block * kBlock));
    for (float& value : weights) {
      const float weight = exp_of_negative((value - max) / params.temperature);
      value = weight >= params.min_p ? weight : 0.0f;
      kept += value > 0.0f ? 1u : 0u;
    }
    scratch.block_max[block] = row_max(weights);
  }
  return kept;
}

bool Sampler::likelier(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.token < b.token);
}

double Sampler::total_mass(std::span<const Candidate> candidates) {
  double total = 0.0;
  for (const Candidate& candidate : candidates) total += static_cast<double>(candidate.value);
  return total;
}

// Makes candidates of the tokens that top_k, then top_p keep, likeliest first, ties by id.
void Sampler::keep(const SamplingParams& params, bool cuts_k, Scratch& scratch) {
  std::vector<Candidate>& candidates = scratch.candidates;
  const double top_p = static_cast<double>(params.top_p);
  if (cuts_k) {
    const auto top_k = static_cast<std::size_t>(params.top_k);
    gather_likeliest(scratch, [&] { return candidates.size() >= top_k; });
    std::nth_element(candidates.begin(), candidates.begin() + params.top_k, candidates.end(), likelier);
    candidates.resize(top_k);
    if (params.top_p >= 1.0f) return std::sort(candidates.begin(), candidates.end(), likelier);
    return cut_top_p(top_p * total_mass(candidates), candidates);
  }
  const double mass = top_p * row_sum(scratch.weights);
  gather_likeliest(scratch, [&] { return total_mass(candidates) >= mass; });
  cut_top_p(mass, candidates);
}

// Gathers all tokens above falling bounds until there are enough: whole blocks are passed over by their largest weight.
// Any token outside is less likely than every candidate.
template <typename Enough>
void Sampler::gather_likeliest(Scratch& scratch, const Enough& enough) {
  scratch.candidates.clear();
  float above = 2.0f;  // all weights from here on are candidates already
  for (float bound = 1.0f / 16;; bound *= bound) {
    const float least = std::max(bound, std::numeric_limits<float>::min());  // no weight but 0 is smaller
    for (std::size_t block = 0; block < scratch.block_max.size(); ++block) {
      if (scratch.block_max[block] < least) continue;
      const std::size_t end = std::min((block + 1) * kBlock, scratch.weights.size());
      for (std::size_t i = block * kBlock; i < end; ++i) {
        const float weight = scratch.weights[i];
        if (weight >= least && weight < above) scratch.candidates.push_back({weight, static_cast<TokenId>(i)});
      }
    }
    if (enough() || bound < least) return;
    above = least;
  }
}

// Keeps the shortest likeliest-first prefix whose mass reaches `mass` (Holtzman et al., arXiv 1904.09751).
void Sampler::cut_top_p(double mass, std::vector<Candidate>& candidates) {
  // The prefix is nearly always short: sort in growing pieces instead of everything.
  constexpr std::size_t kFirstPiece = 256;
  double reached = 0.0;
  std::size_t sorted = 0;
  for (std::size_t piece = kFirstPiece; sorted < candidates.size(); piece *= 4) {
    const std::size_t end = std::min(candidates.size(), sorted + piece);
    const auto first = candidates.begin() + static_cast<std::ptrdiff_t>(sorted);
    std::partial_sort(first, candidates.begin() + static_cast<std::ptrdiff_t>(end), candidates.end(), likelier);
    for (; sorted < end; ++sorted) {
      reached += static_cast<double>(candidates[sorted].value);
      if (reached >= mass) {
        candidates.resize(sorted + 1);
        return;
      }
    }
  }
}

}  // namespace llmsrv
