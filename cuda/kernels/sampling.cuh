// Draws a token of each row: penalties, temperature, min_p, top_k, top_p and one uniform number, without sorting.
//
// Tokens are ordered by a key: their weight's bits, then the lower id first. What top_k and top_p keep is a prefix of
// that order, and a draw is a place in it (in id order when nothing was cut, which is how the core draws); each is
// found by token_search.cuh. Weights are bit for bit the core's; their masses are integers, weight * 2^44 rounded down.
// So a row's token follows from the row alone, and is the core's unless the uniform number is within about 2^-27 of the
// edge between two tokens; a token that is less likely than the likeliest by a factor of 2^44 is never drawn.
//
// Work: one block of kSampleThreads per row. Shared memory: 35 KiB. Bytes moved: the logits twice and the weights out
// once, and twice more for a row with penalties; then the weights from L2, kIdDigits times for the draw of a row that
// is not cut, kKeyDigits times for each of top_k, top_p and the draw of one that is. Assumes: at most kVocabMax tokens;
// weights fit beside the logits into L2; ids are inside the vocabulary, and one token is left that may be drawn
// (checked by the core).
#pragma once

#include "cuda/kernels/penalties.cuh"
#include "cuda/kernels/token_search.cuh"

namespace llmsrv::cuda {

// How a row is drawn. `uniform` is in [0, 1), keyed by seed, choice and position; the core makes it.
struct SampleRowOnDevice {
  double uniform;
  float temperature;  // 0: the likeliest
  float top_p;        // 1 keeps all
  float min_p;
  std::int32_t top_k;  // 0 keeps all
  RowPenalties penalties;
};

struct SampleParams {
  const float* logits = nullptr;  // [rows, vocab]; row r starts at r * logits_stride
  int logits_stride = 0;
  const SampleRowOnDevice* rows = nullptr;
  const std::int32_t* words = nullptr;     // what the rows' penalties list
  const std::int32_t* drawn = nullptr;     // tokens of the draw before, for rows that have one pending
  const std::uint32_t* allowed = nullptr;  // [rows, ceil(vocab / 32)], a bit per token; or none: all are
  float* weights = nullptr;                // [rows, vocab], workspace
  std::int32_t* tokens = nullptr;          // [rows]
  std::int32_t* finite = nullptr;          // [rows]; 0: a logit is NaN or infinite, and the token means nothing
  int row_count = 0;
  int vocab = 0;
};

// Of this block's row.
__device__ inline bool is_allowed(const SampleParams& p, int token) {
  if (p.allowed == nullptr) return true;
  const std::size_t first = blockIdx.x * static_cast<std::size_t>(ceil_div(p.vocab, 32));
  return (p.allowed[first + static_cast<std::size_t>(token / 32)] >> token % 32 & 1) != 0;
}

// Makes weights of the changed logits, exp((logit - max) / temperature), 0 below min_p and where a token is not
// allowed. Returns their mass; the number of tokens kept goes to `kept`. `changed` may be `weights`.
__device__ inline Whole weigh(const SampleParams& p, const SampleRowOnDevice& row, float max, const float* changed,
                              float* weights, SearchShared& shared, Whole& kept) {
  Whole mass = 0;
  Whole count = 0;
  for (int token = static_cast<int>(threadIdx.x); token < p.vocab; token += kSampleThreads) {
    const float weight = is_allowed(p, token) ? exp_of_negative((changed[token] - max) / row.temperature) : 0.0f;
    const float kept_weight = weight >= row.min_p ? weight : 0.0f;
    weights[token] = kept_weight;  // read by this thread alone
    mass += mass_of(kept_weight);
    count += kept_weight > 0.0f ? 1 : 0;
  }
  kept = block_total(count, shared);
  return block_total(mass, shared);
}

// The key of the likeliest token among the allowed ones, by the changed logits' order; sets shared.not_finite.
__device__ inline Whole find_likeliest(const SampleParams& p, const float* logits, const float* changed,
                                       SearchShared& shared) {
  if (threadIdx.x == 0) shared.not_finite = 0;
  __syncthreads();  // the flag is down, and all changed logits are there
  Whole likeliest = 0;
  bool finite = true;
  for (int token = static_cast<int>(threadIdx.x); token < p.vocab; token += kSampleThreads) {
    finite &= isfinite(logits[token]);
    if (!is_allowed(p, token)) continue;
    const Whole key = key_of(ordered_bits(changed[token]), token);
    likeliest = key > likeliest ? key : likeliest;
  }
  if (!finite) atomicMax(&shared.not_finite, 1);
  return block_largest(likeliest, shared);
}

__device__ inline int draw(const SampleParams& p, const SampleRowOnDevice& row, Whole likeliest, const float* changed,
                           float* weights, SearchShared& shared) {
  Whole kept;
  Whole mass = weigh(p, row, value_of(likeliest), changed, weights, shared, kept);
  const auto key = [weights](int token) { return key_of(__float_as_uint(weights[token]), token); };
  const auto its_mass = [weights](int token) { return mass_of(weights[token]); };
  const bool cuts_k = row.top_k > 0 && static_cast<Whole>(row.top_k) < kept;
  if (cuts_k) {
    const auto one = [weights](int token) { return Whole{weights[token] > 0.0f}; };
    const Whole last = find_key<kKeyDigits>(p.vocab, static_cast<Whole>(row.top_k), key, one, shared).key;
    Whole inside = 0;
    for (int token = static_cast<int>(threadIdx.x); token < p.vocab; token += kSampleThreads) {
      if (key(token) >= last) inside += its_mass(token);
    }
    mass = block_total(inside, shared);
  }
  if (row.top_p < 1.0f) {
    const Whole wanted = static_cast<Whole>(static_cast<double>(row.top_p) * static_cast<double>(mass));
    const Whole target = wanted < 1 ? Whole{1} : wanted < mass ? wanted : mass;
    mass = find_key<kKeyDigits>(p.vocab, target, key, its_mass, shared).through;
  }
  const Whole place = static_cast<Whole>(row.uniform * static_cast<double>(mass)) + 1;
  const Whole target = place < mass ? place : mass;
  if (cuts_k || row.top_p < 1.0f) return token_of(find_key<kKeyDigits>(p.vocab, target, key, its_mass, shared).key);
  const auto by_id = [](int token) { return id_key(token); };
  return token_of(find_key<kIdDigits>(p.vocab, target, by_id, its_mass, shared).key);
}

// A template, so that the header may be included by several files.
template <int kThreads>
__global__ void __launch_bounds__(kThreads, 1) sample_kernel(const SampleParams p) {
  LLMSRV_SHARED(SearchShared, shared, 1);
  const int index = static_cast<int>(blockIdx.x);
  const SampleRowOnDevice row = p.rows[index];
  const float* logits = row_at(p.logits, index, p.logits_stride);
  float* weights = row_at(p.weights, index, p.vocab);
  const bool changes = row.penalties.any != 0;
  if (changes) penalize(row.penalties, p.words, p.drawn, logits, p.vocab, weights);
  const float* changed = changes ? weights : logits;

  const Whole likeliest = find_likeliest(p, logits, changed, shared[0]);
  const bool finite = shared[0].not_finite == 0;
  int token = token_of(likeliest);
  if (finite && row.temperature > 0.0f) token = draw(p, row, likeliest, changed, weights, shared[0]);
  if (threadIdx.x == 0) {
    p.tokens[index] = token;
    p.finite[index] = finite;
  }
}

}  // namespace llmsrv::cuda
