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
// Fewer tokens are over within 50 us: each member goes through its share in one go, and nobody helps.
constexpr int kHelpedTokens = 16;

int groups_for(int cols) { return (cols + packed::kGroupCols - 1) / packed::kGroupCols; }

Int8Table::Linear* kernel_for(const Int8Table& kernels, WeightFormat format) {
  switch (format) {
    case WeightFormat::kU4:
      return kernels.linear_u4;
    case WeightFormat::kU4G64:
      return kernels.linear_u4_g64;
    case WeightFormat::kU4G128:
      return kernels.linear_u4_g128;
    case WeightFormat::kU4Zero:
      return kernels.linear_u4_zero;
    case WeightFormat::kU5:
      return kernels.linear_u5;
    case WeightFormat::kU5Zero:
      return kernels.linear_u5_zero;
    case WeightFormat::kS8:
    case WeightFormat::kS8G64:
    case WeightFormat::kS8G128:
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
  const RowSource& rows;
  std::span<const PackedMatrix> weights;
  std::span<const float> bias;
  bool add;
  TensorView out;

  int groups() const { return groups_for(rows.cols()); }
  int panels() const {
    int count = 0;
    for (const PackedMatrix& weight : weights) count += is_quantized(weight.format()) ? weight.panels() : 0;
    return count;
  }
};

namespace {

// Calls visit(weight, first row of it in the stack, its panels) for the quantized panels [panels.begin, panels.end),
// counted through all matrices.
template <typename Visit>
void for_panels(std::span<const PackedMatrix> weights, ThreadPool::Range panels, const Visit& visit) {
  int first_row = 0;
  int first_panel = 0;
  for (const PackedMatrix& weight : weights) {
    if (is_quantized(weight.format())) {
      const int begin = std::max(panels.begin - first_panel, 0);
      const int end = std::min(panels.end - first_panel, weight.panels());
      if (begin < end) visit(weight, first_row, ThreadPool::Range{begin, end});
      first_panel += weight.panels();
    }
    first_row += weight.rows();
  }
}

}  // namespace

std::size_t Int8Linear::workspace_bytes(int cols) const {
  const int groups = groups_for(cols);
  return shared_bytes(groups) + own_bytes(groups) * static_cast<std::size_t>(pool_.size());
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

std::size_t Int8Linear::shared_bytes(int groups) const { return std::max(kSharedBytes, tile_bytes(groups)); }

std::size_t Int8Linear::own_bytes(int groups) const {
  const auto row_values = static_cast<std::size_t>(kernels_.tile_tokens * groups * packed::kGroupCols);
  return std::max(kOwnBytes, tile_bytes(groups)) + row_values * sizeof(float);
}

std::uint8_t* Int8Linear::shared_activations() const { return reinterpret_cast<std::uint8_t*>(buffer_.data()); }

std::uint8_t* Int8Linear::own_activations(int member) const {
  return shared_activations() + shared_bytes(max_groups_) + own_bytes(max_groups_) * static_cast<std::size_t>(member);
}

float* Int8Linear::own_rows(int member) const {
  return reinterpret_cast<float*>(own_activations(member) + std::max(kOwnBytes, tile_bytes(max_groups_)));
}

void Int8Linear::run(const RowSource& rows, std::span<const PackedMatrix> weights, std::span<const float> bias,
                     bool add, TensorView out) {
  const Call call{rows, weights, bias, add, out};
  LLMSRV_CHECK(call.groups() <= max_groups_);
  if (may_split_tokens(rows.rows())) return split_tokens(call);
  const int block = fitting_tiles(kSharedBytes, call.groups()) * kernels_.tile_tokens;
  for (int first = 0; first < rows.rows(); first += block) {
    split_panels(call, first, std::min(block, rows.rows() - first));
  }
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

// Quantizes tiles of tokens [first_token, first_token + tokens) to their places from `to` on.
void Int8Linear::quantize_tiles(const Call& call, int first_token, int tokens, ThreadPool::Range tiles, int member,
                                std::uint8_t* to) {
  const int groups = call.groups();
  for (int tile = tiles.begin; tile < tiles.end; ++tile) {
    const int before = tile * kernels_.tile_tokens;
    const int count = std::min(kernels_.tile_tokens, tokens - before);
    const TensorView rows = call.rows.make(first_token + before, count, own_rows(member));
    const QuantizeTask task{rows.f32_row(0), rows.row_stride, count, groups,
                            to + kernels_.activation_bytes(before, groups)};
    kernels_.quantize(task, 0, groups);
  }
}

// How many panels are taken at a time: few enough for others to help, and enough to run at full speed.
int Int8Linear::piece_of(int panels) const {
  constexpr int kPieces = 6;
  return std::max((panels + kPieces - 1) / kPieces, 1);
}

// Each member multiplies all tokens with its share of the panels, and helps with the others'.
void Int8Linear::split_panels(const Call& call, int first_token, int tokens) {
  const bool alone = tokens <= kernels_.tile_tokens && tokens * call.rows.cols() <= kOwnValues;
  const int tiles = tiles_for(tokens);
  if (!alone) {
    pool_.run([&](int member) {
      quantize_tiles(call, first_token, tokens, pool_.share(tiles, member), member, shared_activations());
    });
  }
  pool_.run([&](int member) {
    std::uint8_t* activations = alone ? own_activations(member) : shared_activations();
    if (alone) quantize_tiles(call, first_token, tokens, {0, tiles}, member, activations);
    const ThreadPool::Range share = pool_.share(call.panels(), member);
    if (tokens < kHelpedTokens) return multiply(call, first_token, tokens, activations, share);
    work_.offer(member, share, piece_of(share.end - share.begin));
    work_.work_off(member, [&](int /*owner*/, ThreadPool::Range panels) {
      multiply(call, first_token, tokens, activations, panels);
    });
  });
}

// Each member quantizes its share of the tokens, block by block, and multiplies it with all panels. The last block
// stays where it is until all are done: with that one the others can help.
void Int8Linear::split_tokens(const Call& call) {
  const int block = fitting_tiles(kOwnBytes, call.groups());
  const int panels = call.panels();
  const auto share = [&](int member) { return pool_.share(tiles_for(call.rows.rows()), member); };
  const auto last_block = [&](ThreadPool::Range tiles) {
    const int others = std::max(tiles.end - tiles.begin - 1, 0) / block * block;
    return ThreadPool::Range{tiles.begin + others, tiles.end};
  };
  pool_.run([&](int member) {
    const auto quantize = [&](ThreadPool::Range tiles) {
      const auto [first_token, tokens] = tokens_of(call, tiles);
      quantize_tiles(call, first_token, tokens, {0, tiles.end - tiles.begin}, member, own_activations(member));
    };
    const auto multiply_by = [&](ThreadPool::Range some, int owner, ThreadPool::Range tiles) {
      const auto [first_token, tokens] = tokens_of(call, tiles);
      multiply(call, first_token, tokens, own_activations(owner), some);
    };
    const ThreadPool::Range last = last_block(share(member));
    for (int tile = share(member).begin; tile < last.begin; tile += block) {
      quantize({tile, tile + block});
      multiply_by({0, panels}, member, {tile, tile + block});
    }
    quantize(last);
    work_.offer(member, {0, last.begin < last.end ? panels : 0}, piece_of(panels));
    work_.work_off(member,
                   [&](int owner, ThreadPool::Range some) { multiply_by(some, owner, last_block(share(owner))); });
  });
}

// What lies in `tiles`, counted from the first row of the call.
Int8Linear::Tokens Int8Linear::tokens_of(const Call& call, ThreadPool::Range tiles) const {
  const int first = tiles.begin * kernels_.tile_tokens;
  return {first, std::min(tiles.end * kernels_.tile_tokens, call.rows.rows()) - first};
}

// Quantized panels `panels` times tokens [first_token, first_token + tokens), whose rows are `activations`.
void Int8Linear::multiply(const Call& call, int first_token, int tokens, const std::uint8_t* activations,
                          ThreadPool::Range panels) const {
  for_panels(call.weights, panels, [&](const PackedMatrix& weight, int first_row, ThreadPool::Range share) {
    const Int8LinearTask task{
        .in = activations,
        .tokens = tokens,
        .groups = call.groups(),
        .panels = reinterpret_cast<const std::uint8_t*>(weight.panel(0)),
        .panel_bytes = weight.panel_bytes(),
        .rows = weight.rows(),
        .bias = call.bias.empty() ? nullptr : call.bias.data() + first_row,
        .add = call.add,
        .out = call.out.f32_row(first_token) + first_row,
        .out_stride = call.out.row_stride,
    };
    kernel_for(kernels_, weight.format())(task, share.begin, share.end);
  });
}

}  // namespace llmsrv
