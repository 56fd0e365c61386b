// Draws a token of each row: temperature, min_p, top_k, top_p and one uniform number, without sorting the row.
//
// Tokens are ordered by a key: their weight's bits, then the lower id first. What top_k and top_p keep is a prefix of
// that order, and a draw is a place in it; each is found by going down the key's digits with a histogram per digit.
// Masses are integers, weight * 2^44 rounded down, so that no sum depends on its order; a token that is less likely
// than the likeliest by a factor of 2^44 is never drawn.
//
// Work: one block of kSampleThreads per row. Shared memory: 36 KiB. Bytes moved: the logits twice and the weights out
// once; then the weights kKeyDigits times, from L2, for each of top_k, top_p and the draw that the row asks for.
// Assumes: at most 2^24 tokens; weights fit beside the logits into L2.
#pragma once

#include "cuda/kernels/device.cuh"

namespace llmsrv::cuda {

using Whole = unsigned long long;  // the 64-bit type of CUDA's atomics

// How a row is drawn. `uniform` is in [0, 1), keyed by seed, choice and position; the core makes it.
struct SampleRowOnDevice {
  double uniform;
  float temperature;  // 0: the likeliest
  float top_p;        // 1 keeps all
  float min_p;
  std::int32_t top_k;  // 0 keeps all
};

struct SampleParams {
  const float* logits = nullptr;  // [rows, vocab]
  const SampleRowOnDevice* rows = nullptr;
  const std::uint32_t* allowed = nullptr;  // [rows, ceil(vocab / 32)], a bit per token; or none: all are
  float* weights = nullptr;                // [rows, vocab], workspace
  std::int32_t* tokens = nullptr;          // [rows]
  std::int32_t* finite = nullptr;          // [rows]; 0: a logit is NaN or infinite, and the token means nothing
  int row_count = 0;
  int vocab = 0;
};

constexpr int kSampleThreads = 512;
constexpr int kSampleWarps = kSampleThreads / kWarpThreads;
constexpr int kIdBits = 24;
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kKeyDigits = 7;  // 32 bits of weight, of which the sign is 0, and 24 of the id
constexpr Whole kIdMask = (Whole{1} << kIdBits) - 1;

// What the threads of a block share.
struct SampleShared {
  Whole histograms[kSampleWarps][kDigits];  // a warp's own, so that no warp waits for another's atomics
  Whole totals[kDigits];
  Whole partial[kSampleWarps];
  Whole above;
  int digit;
  int not_finite;
};

__device__ inline Whole key_of(float weight, int token) {
  return Whole{__float_as_uint(weight)} << kIdBits | (kIdMask - static_cast<Whole>(token));
}
__device__ inline int token_of(Whole key) { return static_cast<int>(kIdMask - (key & kIdMask)); }
__device__ inline Whole mass_of(float weight) { return static_cast<Whole>(weight * 17592186044416.0f); }

// Bits that are ordered as the floats are.
__device__ inline std::uint32_t ordered_bits(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Of this block's row.
__device__ inline bool is_allowed(const SampleParams& p, int token) {
  if (p.allowed == nullptr) return true;
  const std::size_t first = blockIdx.x * static_cast<std::size_t>(ceil_div(p.vocab, 32));
  return (p.allowed[first + static_cast<std::size_t>(token / 32)] >> token % 32 & 1) != 0;
}

// The block's integers put together by `join`, in every thread; any order gives the same.
template <typename Join>
__device__ inline Whole block_join(Whole value, SampleShared& shared, const Join& join) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  LLMSRV_UNROLL
  for (int step = kWarpThreads / 2; step > 0; step /= 2) value = join(value, __shfl_xor_sync(kAllLanes, value, step));
  __syncthreads();  // all threads have read the parts of the join before
  if (threadIdx.x % kWarpThreads == 0) shared.partial[warp] = value;
  __syncthreads();  // every warp's part is there
  for (int i = 0; i < kSampleWarps; ++i) value = i == 0 ? shared.partial[0] : join(value, shared.partial[i]);
  return value;
}

// Warp 0 looks for the digit, from the highest down, at which the running total reaches `target`.
__device__ inline void find_digit(Whole target, SampleShared& shared) {
  const int lane = static_cast<int>(threadIdx.x);
  Whole above = 0;
  for (int top = kDigits - 1; top >= 0; top -= kWarpThreads) {
    Whole running = shared.totals[top - lane];
    LLMSRV_UNROLL
    for (unsigned step = 1; step < kWarpThreads; step *= 2) {
      const Whole before = __shfl_up_sync(kAllLanes, running, step);
      if (threadIdx.x >= step) running += before;
    }
    const unsigned reached = __ballot_sync(kAllLanes, above + running >= target);
    if (reached != 0) {
      const int first = __ffs(static_cast<int>(reached)) - 1;
      if (lane == first) {
        shared.digit = top - lane;
        shared.above = above + running - shared.totals[top - lane];
      }
      return;
    }
    above += __shfl_sync(kAllLanes, running, kWarpThreads - 1);
  }
}

struct Found {
  Whole key;
  Whole through;  // the measure of all tokens down to it, itself included
};

// The token, likeliest first, at which the running measure (tokens, or their mass) reaches `target`.
// REQUIRES: 1 <= target <= the measure of all tokens with a weight
template <bool kCountsTokens>
__device__ inline Found find_key(const float* weights, int vocab, Whole target, SampleShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  Whole* histogram = shared.histograms[thread / kWarpThreads];
  Found found{0, 0};
  for (int shift = (kKeyDigits - 1) * kDigitBits; shift >= 0; shift -= kDigitBits) {
    for (int digit = thread % kWarpThreads; digit < kDigits; digit += kWarpThreads) histogram[digit] = 0;
    __syncwarp();  // the warp's histogram is empty
    for (int token = thread; token < vocab; token += kSampleThreads) {
      const Whole key = key_of(weights[token], token);
      const bool in_prefix = key >> shift >> kDigitBits == found.key >> shift >> kDigitBits;
      if (!in_prefix || weights[token] == 0.0f) continue;
      atomicAdd(&histogram[key >> shift & (kDigits - 1)], kCountsTokens ? Whole{1} : mass_of(weights[token]));
    }
    __syncthreads();  // all histograms are full
    if (thread < kDigits) {
      Whole total = 0;
      for (int warp = 0; warp < kSampleWarps; ++warp) total += shared.histograms[warp][thread];
      shared.totals[thread] = total;
    }
    __syncthreads();  // the totals are there, the histograms are free
    if (thread < kWarpThreads) find_digit(target, shared);
    __syncthreads();  // the digit is there, the totals are free
    target -= shared.above;
    found.through += shared.above;
    found.key |= static_cast<Whole>(shared.digit) << shift;
    if (shift == 0) found.through += shared.totals[shared.digit];
  }
  return found;
}

// Makes weights of the logits, exp((logit - max) / temperature), 0 below min_p and where a token is not allowed.
// Returns their mass; the number of tokens kept goes to `kept`.
__device__ inline Whole weigh(const SampleParams& p, const SampleRowOnDevice& row, Whole likeliest, const float* logits,
                              float* weights, SampleShared& shared, Whole& kept) {
  const float max = logits[token_of(likeliest)];
  Whole mass = 0;
  Whole count = 0;
  for (int token = static_cast<int>(threadIdx.x); token < p.vocab; token += kSampleThreads) {
    const float weight = is_allowed(p, token) ? expf((logits[token] - max) / row.temperature) : 0.0f;
    const float kept_weight = weight >= row.min_p ? weight : 0.0f;
    weights[token] = kept_weight;  // read by this thread alone
    mass += mass_of(kept_weight);
    count += kept_weight > 0.0f ? 1 : 0;
  }
  const auto add = [](Whole a, Whole b) { return a + b; };
  kept = block_join(count, shared, add);
  return block_join(mass, shared, add);
}

// The key of the likeliest token among the allowed ones, by the logits' order; sets shared.not_finite.
__device__ inline Whole find_likeliest(const SampleParams& p, const float* logits, SampleShared& shared) {
  if (threadIdx.x == 0) shared.not_finite = 0;
  __syncthreads();  // the flag is down
  Whole likeliest = 0;
  bool finite = true;
  for (int token = static_cast<int>(threadIdx.x); token < p.vocab; token += kSampleThreads) {
    const float logit = logits[token];
    finite &= isfinite(logit);
    if (!is_allowed(p, token)) continue;
    const Whole key = Whole{ordered_bits(logit)} << kIdBits | (kIdMask - static_cast<Whole>(token));
    likeliest = key > likeliest ? key : likeliest;
  }
  if (!finite) atomicMax(&shared.not_finite, 1);
  return block_join(likeliest, shared, [](Whole a, Whole b) { return a > b ? a : b; });
}

__device__ inline int draw(const SampleParams& p, const SampleRowOnDevice& row, Whole likeliest, const float* logits,
                           float* weights, SampleShared& shared) {
  Whole kept;
  Whole mass = weigh(p, row, likeliest, logits, weights, shared, kept);
  const auto reach = [](double part, Whole of) {  // part * of, but at least 1 and at most all
    const Whole target = static_cast<Whole>(part * static_cast<double>(of));
    return target < 1 ? Whole{1} : target < of ? target : of;
  };
  if (row.top_k > 0 && static_cast<Whole>(row.top_k) < kept) {
    const Whole last = find_key<true>(weights, p.vocab, static_cast<Whole>(row.top_k), shared).key;
    Whole inside = 0;
    for (int token = static_cast<int>(threadIdx.x); token < p.vocab; token += kSampleThreads) {
      if (key_of(weights[token], token) >= last) inside += mass_of(weights[token]);
    }
    mass = block_join(inside, shared, [](Whole a, Whole b) { return a + b; });
  }
  if (row.top_p < 1.0f) {
    mass = find_key<false>(weights, p.vocab, reach(static_cast<double>(row.top_p), mass), shared).through;
  }
  const Whole place = static_cast<Whole>(row.uniform * static_cast<double>(mass)) + 1;
  return token_of(find_key<false>(weights, p.vocab, place < mass ? place : mass, shared).key);
}

// A template, so that the header may be included by several files.
template <int kThreads>
__global__ void __launch_bounds__(kThreads, 1) sample_kernel(const SampleParams p) {
  LLMSRV_SHARED(SampleShared, shared, 1);
  const std::size_t first = blockIdx.x * static_cast<std::size_t>(p.vocab);
  const SampleRowOnDevice row = p.rows[blockIdx.x];
  const float* logits = p.logits + first;
  const Whole likeliest = find_likeliest(p, logits, shared[0]);
  const bool finite = shared[0].not_finite == 0;
  int token = token_of(likeliest);
  if (finite && row.temperature > 0.0f) token = draw(p, row, likeliest, logits, p.weights + first, shared[0]);
  if (threadIdx.x == 0) {
    p.tokens[blockIdx.x] = token;
    p.finite[blockIdx.x] = finite;
  }
}

}  // namespace llmsrv::cuda
