// Log-probability and rank of a token, and the likeliest tokens, of raw logits: what cpp/sample/logprobs.h tells,
// without sorting the row.
//
// Work: one block of kSampleThreads per row. The k likeliest are those from the k-th key on (token_search.cuh); each
// finds its place among them by comparing itself with all. Shared memory: 39 KiB. Bytes moved: the logits three times,
// and kKeyDigits times more, from L2, where alternatives are asked for.
// The mass of all tokens is a sum of integers, within 2^-26 of the exact one, so that a row's results follow from the
// row alone. Ranks and the order of alternatives are exact.
// Assumes: at most kVocabMax tokens, at most kTopLogprobsMax alternatives; logits are finite, else the results mean
// nothing.
#pragma once

#include "cuda/kernels/token_search.cuh"

namespace llmsrv::cuda {

constexpr int kTopLogprobsMax = kSampleThreads;

struct LogprobRowOnDevice {
  std::int32_t row;        // of the logits, and of the tokens to tell of
  std::int32_t top_count;  // alternatives, at most the vocabulary
};

struct LogprobParams {
  const float* logits = nullptr;  // [*, vocab]; row r starts at r * logits_stride
  int logits_stride = 0;
  const LogprobRowOnDevice* rows = nullptr;
  const std::int32_t* tokens = nullptr;  // [*], beside the logits
  float* logprobs = nullptr;             // [row_count]
  std::int32_t* ranks = nullptr;         // [row_count], 1 + the number of likelier tokens
  std::int32_t* top_tokens = nullptr;    // [row_count, top_stride], likeliest first, ties by id
  float* top_logprobs = nullptr;         // [row_count, top_stride]
  int top_stride = 0;
  int row_count = 0;
  int vocab = 0;
};

struct LogprobShared {
  SearchShared search;
  Whole keys[kTopLogprobsMax];
  int found;
};

// The keys of the `count` likeliest tokens, in no order, to shared.keys.
// REQUIRES: 1 <= count <= vocab
__device__ inline void find_top(const float* logits, int vocab, int count, LogprobShared& shared) {
  const auto key = [logits](int token) { return key_of(ordered_bits(logits[token]), token); };
  const auto one = [](int) { return Whole{1}; };
  if (threadIdx.x == 0) shared.found = 0;  // the search's barriers stand before its next use
  const Whole last = find_key<kKeyDigits>(vocab, static_cast<Whole>(count), key, one, shared.search).key;
  for (int token = static_cast<int>(threadIdx.x); token < vocab; token += kSampleThreads) {
    if (key(token) >= last) shared.keys[atomicAdd(&shared.found, 1)] = key(token);
  }
  __syncthreads();  // all keys are there
}

// A template, so that the header may be included by several files.
template <int kThreads>
__global__ void __launch_bounds__(kThreads, 1) logprobs_kernel(const LogprobParams p) {
  LLMSRV_SHARED(LogprobShared, shared, 1);
  const int index = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const LogprobRowOnDevice row = p.rows[index];
  const float* logits = row_at(p.logits, row.row, p.logits_stride);
  const float chosen = logits[p.tokens[row.row]];

  Whole likeliest = 0;
  Whole likelier = 0;
  for (int token = thread; token < p.vocab; token += kSampleThreads) {
    const Whole key = key_of(ordered_bits(logits[token]), token);
    likeliest = key > likeliest ? key : likeliest;
    likelier += logits[token] > chosen ? 1 : 0;
  }
  const float max = value_of(block_largest(likeliest, shared[0].search));
  likelier = block_total(likelier, shared[0].search);
  Whole mass = 0;
  for (int token = thread; token < p.vocab; token += kSampleThreads) {
    mass += mass_of(exp_of_negative(logits[token] - max));
  }
  mass = block_total(mass, shared[0].search);
  const double normalizer = static_cast<double>(max) + log(static_cast<double>(mass) * kMassUnit);
  const auto logprob = [normalizer](float logit) {
    return static_cast<float>(static_cast<double>(logit) - normalizer);
  };
  if (thread == 0) {
    p.logprobs[index] = logprob(chosen);
    p.ranks[index] = static_cast<std::int32_t>(likelier) + 1;
  }

  if (row.top_count == 0) return;
  find_top(logits, p.vocab, row.top_count, shared[0]);
  if (thread >= row.top_count) return;
  const Whole key = shared[0].keys[thread];
  int place = 0;
  for (int i = 0; i < row.top_count; ++i) place += shared[0].keys[i] > key ? 1 : 0;
  row_at(p.top_tokens, index, p.top_stride)[place] = token_of(key);
  row_at(p.top_logprobs, index, p.top_stride)[place] = logprob(value_of(key));
}

}  // namespace llmsrv::cuda
