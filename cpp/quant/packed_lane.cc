#include "cpp/quant/packed_lane.h"

#include <cstdint>
#include <cstring>

namespace llmsrv {
namespace {

using packed::kLineBytes;
using packed::kPanelRows;
using packed::Superblock;

constexpr int kF16Bytes = 2;

// The parts of one superblock that belong to one block of one row. A block is a group, or in K formats a superblock.
template <typename Byte>
struct Place {
  const Superblock& layout;
  Byte* superblock;
  int lane;
  int first_group;
  int groups;

  Byte* low(int group) const { return superblock + (first_group + group) * layout.low_group_bytes + 4 * lane; }
  Byte* high(int group) const { return superblock + layout.high + (first_group + group) * layout.high_group_bytes; }
  bool is_k() const { return layout.d_min > layout.d; }
  bool has_mins() const { return layout.d > layout.mins; }
  // The f16 of this block: of its group, which others may share, or in K formats of its row.
  int f16_row() const { return is_k() ? lane : first_group / layout.groups_per_scale * kPanelRows + lane; }
  Byte* scale() const { return superblock + (is_k() ? layout.d : layout.scales) + kF16Bytes * f16_row(); }
  Byte* min() const { return superblock + (is_k() ? layout.d_min : layout.mins) + kF16Bytes * f16_row(); }
  // K formats: one byte per row and sub-group.
  Byte* sub_scale(int sub) const { return superblock + layout.scales + sub * kPanelRows + lane; }
  Byte* sub_min(int sub) const { return superblock + layout.mins + sub * kPanelRows + lane; }
  int sub_scales() const { return (layout.mins - layout.scales) / kPanelRows; }
  int sub_mins() const { return (layout.d - layout.mins) / kPanelRows; }
};

template <typename Byte>
Place<Byte> place_of(WeightFormat format, Byte* panel, LaneBlock at) {
  const Superblock& layout = superblock_of(format);
  const int groups = source_block_values(source_of(format)) / packed::kGroupCols;
  const int group = at.block * groups;
  return {layout, panel + static_cast<std::ptrdiff_t>(group / layout.groups) * layout.bytes, at.lane,
          group % layout.groups, groups};
}

// `line` is the lane's four bytes of the first line.
void store_nibbles(const std::uint8_t* quants, std::uint8_t* line) {
  for (int j = 0; j < 4; ++j, line += kLineBytes) {
    for (int b = 0; b < 4; ++b) {
      line[b] = static_cast<std::uint8_t>((quants[4 * j + b] & 15) | (quants[16 + 4 * j + b] & 15) << 4);
    }
  }
}

void load_nibbles(const std::uint8_t* line, std::uint8_t* quants) {
  for (int j = 0; j < 4; ++j, line += kLineBytes) {
    for (int b = 0; b < 4; ++b) {
      quants[4 * j + b] = line[b] & 15;
      quants[16 + 4 * j + b] = line[b] >> 4;
    }
  }
}

void store_bytes(const std::uint8_t* quants, std::uint8_t* line) {
  for (int j = 0; j < 8; ++j) std::memcpy(line + j * kLineBytes, quants + 4 * j, 4);
}

void load_bytes(const std::uint8_t* line, std::uint8_t* quants) {
  for (int j = 0; j < 8; ++j) std::memcpy(quants + 4 * j, line + j * kLineBytes, 4);
}

// A lane has four bits of each mask: half of a byte.
void store_masks(const std::uint8_t* quants, std::uint8_t* masks, int lane) {
  const int shift = lane % 2 * 4;
  for (int v = 0; v < 8; ++v) {
    int bits = 0;
    for (int b = 0; b < 4; ++b) bits |= (quants[4 * v + b] >> 4 & 1) << b;
    std::uint8_t& byte = masks[v * 8 + lane / 2];
    byte = static_cast<std::uint8_t>((byte & ~(15 << shift)) | bits << shift);
  }
}

void add_masks(const std::uint8_t* masks, int lane, std::uint8_t* quants) {
  for (int v = 0; v < 8; ++v) {
    const int bits = masks[v * 8 + lane / 2] >> (lane % 2 * 4);
    for (int b = 0; b < 4; ++b) quants[4 * v + b] |= static_cast<std::uint8_t>((bits >> b & 1) << 4);
  }
}

void store_planes(const std::uint8_t* quants, std::uint8_t* planes, int lane) {
  for (int i = 0; i < 2; ++i) {
    for (int b = 0; b < 4; ++b) {
      int bits = 0;
      for (int w = 0; w < 4; ++w) bits |= (quants[16 * i + 4 * w + b] >> 4) << 2 * w;
      planes[i * kLineBytes + 4 * lane + b] = static_cast<std::uint8_t>(bits);
    }
  }
}

void add_planes(const std::uint8_t* planes, int lane, std::uint8_t* quants) {
  for (int i = 0; i < 2; ++i) {
    for (int b = 0; b < 4; ++b) {
      const int bits = planes[i * kLineBytes + 4 * lane + b];
      for (int w = 0; w < 4; ++w) quants[16 * i + 4 * w + b] |= static_cast<std::uint8_t>((bits >> 2 * w & 3) << 4);
    }
  }
}

}  // namespace

void store_block(WeightFormat format, std::byte* panel, LaneBlock at, const QuantBlock& block) {
  const auto place = place_of(format, reinterpret_cast<std::uint8_t*>(panel), at);
  for (int group = 0; group < place.groups; ++group) {
    const std::uint8_t* quants = block.quants + group * packed::kGroupCols;
    if (place.layout.low_group_bytes == packed::kByteGroupBytes) {
      store_bytes(quants, place.low(group));
    } else {
      store_nibbles(quants, place.low(group));
    }
    if (place.layout.high_group_bytes == packed::kMaskGroupBytes) store_masks(quants, place.high(group), at.lane);
    if (place.layout.high_group_bytes == packed::kPlaneGroupBytes) store_planes(quants, place.high(group), at.lane);
  }
  std::memcpy(place.scale(), &block.scale, kF16Bytes);
  if (place.has_mins()) std::memcpy(place.min(), &block.min, kF16Bytes);
  if (!place.is_k()) return;
  for (int sub = 0; sub < place.sub_scales(); ++sub) *place.sub_scale(sub) = block.sub_scales[sub];
  for (int sub = 0; sub < place.sub_mins(); ++sub) *place.sub_min(sub) = block.sub_mins[sub];
}

void load_block(WeightFormat format, const std::byte* panel, LaneBlock at, QuantBlock& block) {
  const auto place = place_of(format, reinterpret_cast<const std::uint8_t*>(panel), at);
  for (int group = 0; group < place.groups; ++group) {
    std::uint8_t* quants = block.quants + group * packed::kGroupCols;
    if (place.layout.low_group_bytes == packed::kByteGroupBytes) {
      load_bytes(place.low(group), quants);
    } else {
      load_nibbles(place.low(group), quants);
    }
    if (place.layout.high_group_bytes == packed::kMaskGroupBytes) add_masks(place.high(group), at.lane, quants);
    if (place.layout.high_group_bytes == packed::kPlaneGroupBytes) add_planes(place.high(group), at.lane, quants);
  }
  std::memcpy(&block.scale, place.scale(), kF16Bytes);
  if (place.has_mins()) std::memcpy(&block.min, place.min(), kF16Bytes);
  if (!place.is_k()) return;
  for (int sub = 0; sub < place.sub_scales(); ++sub) block.sub_scales[sub] = *place.sub_scale(sub);
  for (int sub = 0; sub < place.sub_mins(); ++sub) block.sub_mins[sub] = *place.sub_min(sub);
}

}  // namespace llmsrv
