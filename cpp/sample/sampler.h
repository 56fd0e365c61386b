// Draws the next token of each row from its own logits, parameters and generator: no row knows of another (promise P3).
//
// Order of operations: bias and penalties (penalties.h), temperature, min_p, top_k, top_p, draw. The draw walks the
// kept tokens, likeliest first (in id order when top_k and top_p cut nothing), with one uniform number keyed by (seed,
// choice, position).
//
// Thread rule: engine thread only; rows are shared out over the pool. Allocates nothing per step unless
// log-probabilities are asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cpp/base/aligned_buffer.h"
#include "cpp/base/thread_pool.h"
#include "cpp/sample/params.h"
#include "cpp/sample/penalties.h"
#include "cpp/tensor/tensor_view.h"

namespace llmsrv {

// What one row needs beside its logits. Lifetime: everything referenced must outlive the call.
// REQUIRES: allowed ids, or all ids when none are named, hold one that is not forbidden.
struct SampleRow {
  const SamplingParams* params = nullptr;
  std::span<const TokenId> prompt;
  std::span<const TokenId> output;
  std::span<const TokenId> forbidden;  // ids that may not be drawn now (stop ids before min_tokens)
  std::uint64_t seed = 0;
  std::uint32_t choice = 0;
  std::optional<int> top_logprobs;  // set: tell the log-probability, with this many alternatives
};

struct Sampled {
  TokenId token = 0;
  std::optional<TokenLogprob> logprob;
  bool finite = true;  // false: the logits hold NaN or infinity, so nothing was drawn
};

class Sampler {
 public:
  // `pool` must outlive the sampler.
  Sampler(int vocab_size, int max_rows, ThreadPool& pool);

  // logits: [rows.size(), vocab]; results[i] belongs to row i and is valid until the next call.
  std::span<const Sampled> sample(TensorView logits, std::span<const SampleRow> rows);

  static std::size_t workspace_bytes(int vocab_size, int threads);

 private:
  struct Candidate {
    float value;
    TokenId token;
  };
  // One per thread, on cache lines of its own: the ends of its lists move while a neighbour's do.
  struct alignas(64) Scratch {
    std::vector<float> weights;         // [vocab]: logits, then what draw() makes of them
    std::vector<float> block_max;       // [vocab / kBlock]: the largest weight of each block
    std::vector<Candidate> candidates;  // [vocab]
    TokenCounts counts;                 // [vocab], zero between rows
  };
  static constexpr std::size_t kBlock = 64;

  static void sample_row(std::span<const float> logits, const SampleRow& row, Scratch& scratch, Sampled& result);
  static TokenId draw(const SampleRow& row, Scratch& scratch);
  static std::size_t weigh(const SamplingParams& params, Scratch& scratch);
  static bool likelier(const Candidate& a, const Candidate& b);
  static double total_mass(std::span<const Candidate> candidates);
  static void keep(const SamplingParams& params, bool cuts_k, Scratch& scratch);
  template <typename Enough>
  static void gather_likeliest(Scratch& scratch, const Enough& enough);
  static void cut_top_p(double mass, std::vector<Candidate>& candidates);

  int vocab_size_;
  ThreadPool& pool_;
  std::vector<Scratch> scratch_;
  std::vector<Sampled> results_;
};

}  // namespace llmsrv
