// Linear layers on packed integer weights: makes the rows, quantizes them, and shares the work among the members of a
// pool. Owns the memory for a tile of rows and for the quantized activations. No split changes a bit of a result.
// Thread rule: as Backend's, one caller at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpp/base/aligned_buffer.h"
#include "cpp/base/shared_work.h"
#include "cpp/base/thread_pool.h"
#include "cpp/cpu/int8_kernels.h"
#include "cpp/cpu/row_source.h"
#include "cpp/quant/packed_matrix.h"
#include "cpp/tensor/tensor_view.h"

namespace llmsrv {

class Int8Linear {
 public:
  // Both must outlive it.
  Int8Linear(ThreadPool& pool, const cpu::Int8Table& kernels) : pool_(pool), kernels_(kernels), work_(pool.size()) {}

  // Memory for inputs of up to `cols` columns; the number of rows does not matter.
  std::size_t workspace_bytes(int cols) const;
  void reserve(int cols);

  // What Backend::linear computes, for those of the `weights` that are quantized; the columns of the others are left
  // alone. REQUIRES: one of them is quantized; rows.rows() > 0; reserve() was called with rows.cols() or more
  void run(const RowSource& rows, std::span<const PackedMatrix> weights, std::span<const float> bias, bool add,
           TensorView out);

 private:
  struct Call;
  bool may_split_tokens(int tokens) const;
  void split_panels(const Call& call, int first_token, int tokens);
  void split_tokens(const Call& call);
  int piece_of(int panels) const;
  struct Tokens {
    int first;
    int count;
  };
  Tokens tokens_of(const Call& call, ThreadPool::Range tiles) const;
  void quantize_tiles(const Call& call, int first_token, int tokens, ThreadPool::Range tiles, int member,
                      std::uint8_t* to);
  void multiply(const Call& call, int first_token, int tokens, const std::uint8_t* activations,
                ThreadPool::Range panels) const;

  int tiles_for(int tokens) const;
  std::size_t tile_bytes(int groups) const;
  int fitting_tiles(std::size_t bytes, int groups) const;  // at least one
  std::size_t shared_bytes(int groups) const;
  std::size_t own_bytes(int groups) const;  // activations, then a tile of rows
  std::uint8_t* shared_activations() const;
  std::uint8_t* own_activations(int member) const;
  float* own_rows(int member) const;  // [tile_tokens, cols]

  ThreadPool& pool_;
  const cpu::Int8Table& kernels_;
  SharedWork work_;  // panels
  int max_groups_ = 0;
  AlignedBuffer buffer_;
};

}  // namespace llmsrv
