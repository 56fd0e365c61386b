// Changes a row's logits before a draw: bias, repetition, frequency and presence penalties, forbidden and allowed ids,
// operation by operation as cpp/sample/penalties.h does, so that the bits are the core's.
//
// A word per token gathers what the row's lists say of it: how often it was generated, and whether it is in the prompt,
// forbidden, allowed, or has a bias. The words stand where the changed logits will: a thread turns its own tokens'
// words into logits, then entry i of the list of biases the words of its token. Any number of lists of any length costs
// two passes over the row.
#pragma once

#include "cuda/kernels/token_search.cuh"

namespace llmsrv::cuda {

// Part of the draw's array of ids, SampleParams::words.
struct IdRange {
  int first = 0;
  int count = 0;
};

struct RowPenalties {
  IdRange prompt;
  IdRange output;
  IdRange forbidden;
  IdRange allowed;          // none allows all
  IdRange biased;           // no id twice; as many biases follow behind, as their bits
  float repetition = 1.0f;  // over prompt and output
  float frequency = 0.0f;   // over output
  float presence = 0.0f;
  // The output has one more token, this one of SampleParams::drawn; negative: it has not.
  std::int32_t pending = -1;
  std::int32_t any = 0;  // 0: the logits stay as they are, and nothing above is read
};

constexpr unsigned kInPrompt = 1u << 27;
constexpr unsigned kForbidden = 1u << 28;
constexpr unsigned kAllowed = 1u << 29;
constexpr unsigned kBiased = 1u << 30;
constexpr unsigned kCountMask = kInPrompt - 1;

// Calls f(i) for each place of a range, shared out over the block.
template <typename F>
__device__ inline void for_each_in(const IdRange& range, const F& f) {
  for (int i = static_cast<int>(threadIdx.x); i < range.count; i += kSampleThreads) f(range.first + i);
}

__device__ inline void gather_marks(const RowPenalties& row, const std::int32_t* ids, const std::int32_t* drawn,
                                    unsigned* marks) {
  if (row.pending >= 0 && threadIdx.x == 0) atomicAdd(marks + drawn[row.pending], 1u);
  for_each_in(row.output, [&](int i) { atomicAdd(marks + ids[i], 1u); });
  for_each_in(row.prompt, [&](int i) { atomicOr(marks + ids[i], kInPrompt); });
  for_each_in(row.forbidden, [&](int i) { atomicOr(marks + ids[i], kForbidden); });
  for_each_in(row.allowed, [&](int i) { atomicOr(marks + ids[i], kAllowed); });
  for_each_in(row.biased, [&](int i) { atomicOr(marks + ids[i], kBiased); });
}

// The logit of a token that has these marks, its bias included.
__device__ inline float penalized(const RowPenalties& row, unsigned marks, float logit) {
  constexpr float kNever = -INFINITY;
  constexpr float kLargest = 3.402823466e38f;
  if ((marks & kForbidden) != 0 || (row.allowed.count > 0 && (marks & kAllowed) == 0)) return kNever;
  const unsigned count = marks & kCountMask;
  if (row.repetition != 1.0f && (count > 0 || (marks & kInPrompt) != 0)) {
    // An extreme penalty must not make infinity: that is what marks a token that may not be drawn.
    logit = fminf(fmaxf(logit > 0.0f ? logit / row.repetition : __fmul_rn(logit, row.repetition), -kLargest), kLargest);
  }
  if (count > 0) {
    logit = __fadd_rn(logit, -__fadd_rn(__fmul_rn(row.frequency, static_cast<float>(count)), row.presence));
  }
  return logit;
}

// Writes the changed logits of all tokens. A barrier must follow before they are read.
__device__ inline void penalize(const RowPenalties& row, const std::int32_t* words, const std::int32_t* drawn,
                                const float* logits, int vocab, float* changed) {
  auto* marks = reinterpret_cast<unsigned*>(changed);
  const int thread = static_cast<int>(threadIdx.x);
  for (int token = thread; token < vocab; token += kSampleThreads) marks[token] = 0;
  __syncthreads();  // no token has marks
  gather_marks(row, words, drawn, marks);
  __syncthreads();  // all marks are there
  for (int token = thread; token < vocab; token += kSampleThreads) {
    if ((marks[token] & kBiased) == 0) changed[token] = penalized(row, marks[token], logits[token]);
  }
  if (row.biased.count == 0) return;
  __syncthreads();  // everybody has seen which tokens are left
  for_each_in(row.biased, [&](int i) {
    const int token = words[i];
    const float bias = __uint_as_float(static_cast<unsigned>(words[i + row.biased.count]));
    changed[token] = penalized(row, marks[token], __fadd_rn(logits[token], bias));
  });
}

}  // namespace llmsrv::cuda
