// Draws tokens on the device. What rows need beside their logits goes there in one copy from pinned memory, or in
// several where their lists are long; tokens, log-probabilities and whether logits were finite come back in one copy,
// with an event for each draw. The tokens of the newest draw also stay on the device, for the step after it.
//
// In pinned and in device memory a piece of a draw: rows | rows that tell log-probabilities | words that lists are of.
// Results: tokens, finite [rows] | log-probabilities, ranks [told] | alternatives [told, stride]: tokens, then theirs.
//
// The host waits in wait(), and in draw() where a draw has more pieces than two. Thread rule: as the backend.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cpp/cuda/device.h"
#include "cpp/cuda/staging.h"
#include "cpp/ops/backend.h"

namespace llmsrv {

class DeviceSampler {
 public:
  // Memory of the device that it takes.
  static std::size_t bytes(const StepLimits& limits);
  // Throws std::invalid_argument for a vocabulary or more alternatives than the kernels take.
  DeviceSampler(const Device& device, const StepLimits& limits);

  // As Backend::draw(), behind what `stream` has to do.
  void draw(TensorView logits, std::span<const SampleRow> rows, const DeviceStream& stream);
  // Waits for the oldest draw.
  void wait() const { oldest().done.synchronize(); }
  // As Backend::drawn(). REQUIRES: the draw was waited for.
  std::span<const Sampled> drawn();

  // Device memory: the token that row i of the newest draw got, at place i; what the stream is given now finds it
  // there.
  const std::int32_t* tokens() const { return reinterpret_cast<const std::int32_t*>(tokens_.data()); }

 private:
  // Where the results of a draw are, in 32-bit words.
  struct Layout {
    std::size_t rows = 0;
    std::size_t told = 0;    // rows that tell log-probabilities
    std::size_t stride = 0;  // the most alternatives of one of them
    std::size_t logprobs() const { return 2 * rows; }
    std::size_t top_tokens() const { return 2 * (rows + told); }
    std::size_t words() const { return top_tokens() + 2 * told * stride; }
  };
  // One of the two draws that may be outstanding.
  struct Draw {
    Draw(const Device& device, std::size_t result_bytes, std::size_t rows_most)
        : results(device, result_bytes, MemoryPlace::kHost), done(device), top_counts(rows_most) {}
    DeviceBuffer results;
    DeviceEvent done;
    Layout layout;
    std::vector<std::optional<int>> top_counts;  // [rows]; none: the row tells nothing
  };
  // Consecutive rows of a draw.
  struct Piece {
    TensorView logits;
    std::span<const SampleRow> rows;
    std::size_t first = 0;  // of its rows among the draw's
    std::size_t told = 0;   // before it
  };

  const Draw& oldest() const { return *draws_[taken_ % draws_.size()]; }
  static std::size_t input_bytes(const StepLimits& limits);
  static std::size_t weights_bytes(const StepLimits& limits);
  static std::size_t result_bytes(const StepLimits& limits);
  // Also fills `top_counts`.
  static Layout layout_of(std::span<const SampleRow> rows, int vocab, std::vector<std::optional<int>>& top_counts);
  std::size_t rows_that_fit(std::span<const SampleRow> rows) const;
  std::size_t draw_piece(const Piece& piece, const Layout& layout, const DeviceStream& stream);
  // Launches log-probabilities of these rows of a piece, which are in the device's memory.
  void tell(const Piece& piece, const Layout& layout, std::span<const device::LogprobRow> rows,
            const DeviceStream& stream);
  std::int32_t* result_words(std::size_t first) const {
    return reinterpret_cast<std::int32_t*>(results_.data()) + first;
  }

  const Device& device_;
  const std::size_t words_room_;  // of a piece's lists
  Staging staging_;
  DeviceBuffer inputs_;                                  // a piece
  DeviceBuffer weights_;                                 // [rows, vocab]
  DeviceBuffer results_;                                 // of the draw that the device is at
  DeviceBuffer tokens_;                                  // [rows]: a draw reads the ones before while it makes its own
  std::array<std::unique_ptr<Draw>, kDrawsMost> draws_;  // in turn
  std::size_t asked_ = 0;
  std::size_t taken_ = 0;
  std::vector<Sampled> sampled_;  // what drawn() hands out
};

}  // namespace llmsrv
