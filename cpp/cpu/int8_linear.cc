#include "cpp/cpu/int8_linear.h"

#include <algorithm>

#include "cpp/base/check.h"

namespace llmsrv {

using cpu::Int8LinearTask;
using cpu::Int8Table;
using cpu::QuantizeTask;

namespace {

// Quantized activations that stay in a core's second level cache while all panels pass by.
constexpr std::size_t kSharedBytes = 512 * 1024;
constexpr std::size_t kOwnBytes = 256 * 1024;
// Up to this many values of one tile each member quantizes all of them for itself: that is over sooner than waiting for
// each other, and fetching the result from another core's cache.
constexpr int kOwnValues = 32 * 1024;

int groups_for(int cols) { return (cols + packed::kGroupCols - 1) / packed::kGroupCols; }

Int8Table::Linear* kernel_for(const Int8Table& kernels, WeightFormat format) {
  switch (format) {
    case WeightFormat::kU4:
      return kernels.linear_u4;
    case WeightFormat::kU4Zero:
      return kernels.linear_u4_zero;
    case WeightFormat::kU5:
      return kernels.linear_u5;
    case WeightFormat::kU5Zero:
      return kernels.linear_u5_zero;
    case WeightFormat::kS8:
      return kernels.linear_s8;
    case WeightFormat::kU4K:
      return kernels.linear_u4k;
    case WeightFormat::kU5K:
      return kernels.linear_u5k;
    case WeightFormat::kU6K:
      return kernels.linear_u6k;
    case WeightFormat::kF32:
    case WeightFormat::kBf16:
      break;
  }
  LLMSRV_CHECK(is_quantized(format));
  return nullptr;
}

}  // namespace

struct Int8Linear::Call {
  TensorView in;
  const PackedMatrix& weight;
  std::span<const float> bias;
  bool add;
  TensorView out;
  Int8Table::Linear* kernel;

  int groups() const { return groups_for(in.cols); }
  QuantizeTask quantize(int first_token, int tokens, std::uint8_t* to) const {
    return {in.f32_row(first_token), in.row_stride, tokens, groups(), to};
  }
  Int8LinearTask multiply(int first_token, int tokens, const std::uint8_t* from) const {
    return {
        .in = from,
        .tokens = tokens,
        .groups = groups(),
        .panels = reinterpret_cast<const std::uint8_t*>(weight.panel(0)),
        .panel_bytes = weight.panel_bytes(),
        .rows = weight.rows(),
        .bias = bias.empty() ? nullptr : bias.data(),
        .add = add,
        .out = out.f32_row(first_token),
        .out_stride = out.row_stride,
    };
  }
};

std::size_t Int8Linear::workspace_bytes(int cols) const {
  const std::size_t tile = tile_bytes(groups_for(cols));
  return std::max(kSharedBytes, tile) + std::max(kOwnBytes, tile) * static_cast<std::size_t>(pool_.size());
}

void Int8Linear::reserve(int cols) {
  max_groups_ = groups_for(cols);
  buffer_ = AlignedBuffer(workspace_bytes(cols));
}

int Int8Linear::tiles_for(int tokens) const { return (tokens + kernels_.tile_tokens - 1) / kernels_.tile_tokens; }

std::size_t Int8Linear::tile_bytes(int groups) const {
  const std::size_t bytes = kernels_.activation_bytes(kernels_.tile_tokens, groups);
  return (bytes + 63) / 64 * 64;
}

int Int8Linear::fitting_tiles(std::size_t bytes, int groups) const {
  return std::max(static_cast<int>(bytes / tile_bytes(groups)), 1);
}

std::uint8_t* Int8Linear::shared_activations() const { return reinterpret_cast<std::uint8_t*>(buffer_.data()); }

std::uint8_t* Int8Linear::own_activations(int member) const {
  const std::size_t tile = tile_bytes(max_groups_);
  return shared_activations() + std::max(kSharedBytes, tile) +
         std::max(kOwnBytes, tile) * static_cast<std::size_t>(member);
}

void Int8Linear::run(TensorView in, const PackedMatrix& weight, std::span<const float> bias, bool add, TensorView out) {
  const Call call{in, weight, bias, add, out, kernel_for(kernels_, weight.format())};
  LLMSRV_CHECK(call.groups() <= max_groups_);
  if (may_split_tokens(in.rows)) return split_tokens(call);
  const int block = fitting_tiles(kSharedBytes, call.groups()) * kernels_.tile_tokens;
  for (int first = 0; first < in.rows; first += block) split_panels(call, first, std::min(block, in.rows - first));
}

// Whether members should share tokens instead of weights: no waiting in between, and each core keeps its activations,
// but every member reads all weights, and whole tiles have to come out nearly even.
bool Int8Linear::may_split_tokens(int tokens) const {
  constexpr int kTokensPerMember = 16;
  const int members = pool_.size();
  if (tokens < kTokensPerMember * members * std::max(1, members / 4)) return false;
  const int tiles = tiles_for(tokens);
  const int most = (tiles + members - 1) / members;
  return 8 * most * members <= 9 * tiles;
}

// Each member multiplies all tokens with its share of the panels.
void Int8Linear::split_panels(const Call& call, int first_token, int tokens) {
  const bool alone = tokens <= kernels_.tile_tokens && tokens * call.in.cols <= kOwnValues;
  const int units = tiles_for(tokens) * call.groups();
  if (!alone) {
    const QuantizeTask task = call.quantize(first_token, tokens, shared_activations());
    pool_.run([&](int member) {
      const ThreadPool::Range share = pool_.share(units, member);
      kernels_.quantize(task, share.begin, share.end);
    });
  }
  pool_.run([&](int member) {
    std::uint8_t* activations = alone ? own_activations(member) : shared_activations();
    if (alone) kernels_.quantize(call.quantize(first_token, tokens, activations), 0, units);
    const ThreadPool::Range panels = pool_.share(call.weight.panels(), member);
    call.kernel(call.multiply(first_token, tokens, activations), panels.begin, panels.end);
  });
}

// Each member quantizes its share of the tokens, and multiplies it with all panels.
void Int8Linear::split_tokens(const Call& call) {
  const int block = fitting_tiles(kOwnBytes, call.groups());
  pool_.run([&](int member) {
    std::uint8_t* activations = own_activations(member);
    const ThreadPool::Range tiles = pool_.share(tiles_for(call.in.rows), member);
    for (int tile = tiles.begin; tile < tiles.end; tile += block) {
      const int end = std::min(tile + block, tiles.end);
      const int first_token = tile * kernels_.tile_tokens;
      const int tokens = std::min(end * kernels_.tile_tokens, call.in.rows) - first_token;
      kernels_.quantize(call.quantize(first_token, tokens, activations), 0, (end - tile) * call.groups());
      call.kernel(call.multiply(first_token, tokens, activations), 0, call.weight.panels());
    }
  });
}

}  // namespace llmsrv
