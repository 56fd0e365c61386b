// Draws the next token of each row from its own logits, parameters and generator: no row knows of another (promise P3).
//
// Order of operations: bias and penalties (penalties.h), temperature, min_p, top_k, top_p, draw. The draw walks the
// kept tokens, likeliest first (in id order when top_k and top_p cut nothing), with one uniform number keyed by (seed,
// choice, position).
//
// Thread rule: engine thread only; rows are shared out over the pool. Allocates nothing per step unless
// log-probabilities are asked for.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cpp/base/aligned_buffer.h"
#include "cpp/base/thread_pool.h"
#include "cpp/sample/draw.h"
#include "cpp/sample/params.h"
#include "cpp/sample/penalties.h"
#include "cpp/tensor/tensor_view.h"

namespace llmsrv {

class Sampler {
 public:
  // `pool` must outlive the sampler.
  Sampler(int vocab_size, int max_rows, ThreadPool& pool);

  // logits: [rows.size(), vocab]. REQUIRES: no row is pending; fewer than kDrawsMost calls wait to be taken
  void sample(TensorView logits, std::span<const SampleRow> rows);
  // The results of the oldest call that were not taken yet; the i-th belongs to row i. Valid until the next take().
  // REQUIRES: there is one
  std::span<const Sampled> take();

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

  // Of one call.
  struct Results {
    std::vector<Sampled> rows;  // [max_rows]
    std::size_t count = 0;
  };

  int vocab_size_;
  ThreadPool& pool_;
  std::vector<Scratch> scratch_;
  std::array<Results, kDrawsMost + 1> results_;  // used in turn: those that wait, and those that were taken last
  std::size_t sampled_ = 0;                      // calls so far
  std::size_t taken_ = 0;
};

}  // namespace llmsrv
