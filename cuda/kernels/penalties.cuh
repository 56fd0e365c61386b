// Changes a row's logits before a draw: bias, repetition, frequency and presence penalties, forbidden and allowed ids,
// operation by operation as cpp/sample/penalties.h does, so that the bits are the core's.
//
// A word per token gathers what the row's lists say of it: how often it was generated, and whether it is in the prompt,
// forbidden, allowed, or has a bias. The words stand where the changed logits will: a thread turns its own tokens'
// words into logits. Any number of lists of any length costs two passes over the row.
#pragma once

#include "cuda/kernels/token_search.cuh"

namespace llmsrv::cuda {

// Part of the step's array of ids, SampleParams::ids.
struct IdRange {
  int first = 0;
  int count = 0;
};

struct RowPenalties {
  IdRange prompt;
  IdRange output;
  IdRange forbidden;
  IdRange allowed;          // none allows all
  IdRange biased;           // their biases stand at the same places of SampleParams::biases
  float repetition = 1.0f;  // over prompt and output
  float frequency = 0.0f;   // over output
  float presence = 0.0f;
  bool any = false;  // false: the logits stay as they are, and nothing above is read
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

__device__ inline void gather_marks(const RowPenalties& row, const std::int32_t* ids, unsigned* marks) {
  for_each_in(row.output, [&](int i) { atomicAdd(marks + ids[i], 1u); });
  for_each_in(row.prompt, [&](int i) { atomicOr(marks + ids[i], kInPrompt); });
  for_each_in(row.forbidden, [&](int i) { atomicOr(marks + ids[i], kForbidden); });
  for_each_in(row.allowed, [&](int i) { atomicOr(marks + ids[i], kAllowed); });
  for_each_in(row.biased, [&](int i) { atomicOr(marks + ids[i], kBiased); });
}

// The logit of a token that has these marks.
__device__ inline float penalized(const RowPenalties& row, const std::int32_t* ids, const float* biases, int token,
                                  unsigned marks, float logit) {
  constexpr float kNever = -INFINITY;
  constexpr float kLargest = 3.402823466e38f;
  if ((marks & kForbidden) != 0 || (row.allowed.count > 0 && (marks & kAllowed) == 0)) return kNever;
  if ((marks & kBiased) != 0) {
    for (int i = row.biased.first; i < row.biased.first + row.biased.count; ++i) {
      if (ids[i] == token) logit = __fadd_rn(logit, biases[i]);
    }
  }
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

// Writes the changed logits of all tokens; token i by thread i % kSampleThreads.
__device__ inline void penalize(const RowPenalties& row, const std::int32_t* ids, const float* biases,
                                const float* logits, int vocab, float* changed) {
  auto* marks = reinterpret_cast<unsigned*>(changed);
  const int thread = static_cast<int>(threadIdx.x);
  for (int token = thread; token < vocab; token += kSampleThreads) marks[token] = 0;
  __syncthreads();  // no token has marks
  gather_marks(row, ids, marks);
  __syncthreads();  // all marks are there
  for (int token = thread; token < vocab; token += kSampleThreads) {
    changed[token] = penalized(row, ids, biases, token, marks[token], logits[token]);
  }
}

}  // namespace llmsrv::cuda
