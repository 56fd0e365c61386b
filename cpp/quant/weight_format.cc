#include "cpp/quant/weight_format.h"

#include <array>

#include "cpp/base/check.h"

namespace llmsrv {
namespace {

// In the order of the enum, so that a format is its own index. Plain types have an empty superblock. Without a name of
// its own a format has its source's.
struct FormatInfo {
  WeightFormat format;
  SourceFormat source;
  packed::Superblock superblock;
  int scale_cols;
  std::string_view own_name;
};

constexpr std::array<FormatInfo, 14> kFormats = {{
    {WeightFormat::kF32, SourceFormat::kF32, {}, 1, {}},
    {WeightFormat::kBf16, SourceFormat::kBf16, {}, 1, {}},
    {WeightFormat::kU4, SourceFormat::kQ4_1, packed::kU4, 32, {}},
    {WeightFormat::kU4Zero, SourceFormat::kQ4_0, packed::kU4Zero, 32, {}},
    {WeightFormat::kU5, SourceFormat::kQ5_1, packed::kU5, 32, {}},
    {WeightFormat::kU5Zero, SourceFormat::kQ5_0, packed::kU5Zero, 32, {}},
    {WeightFormat::kS8, SourceFormat::kQ8_0, packed::kS8, 32, {}},
    {WeightFormat::kU4K, SourceFormat::kQ4_K, packed::kU4K, 256, {}},
    {WeightFormat::kU5K, SourceFormat::kQ5_K, packed::kU5K, 256, {}},
    {WeightFormat::kU6K, SourceFormat::kQ6_K, packed::kU6K, 256, {}},
    {WeightFormat::kU4G64, SourceFormat::kQ4_1, packed::kU4G64, 64, "int4-g64"},
    {WeightFormat::kU4G128, SourceFormat::kQ4_1, packed::kU4G128, 128, "int4-g128"},
    {WeightFormat::kS8G64, SourceFormat::kQ8_0, packed::kS8, 64, "int8-g64"},
    {WeightFormat::kS8G128, SourceFormat::kQ8_0, packed::kS8, 128, "int8-g128"},
}};

const FormatInfo& info(WeightFormat format) { return kFormats[static_cast<std::size_t>(format)]; }

}  // namespace

SourceFormat source_of(WeightFormat format) { return info(format).source; }
int scale_cols(WeightFormat format) { return info(format).scale_cols; }

std::string_view weight_format_name(WeightFormat format) {
  const FormatInfo& named = info(format);
  return named.own_name.empty() ? source_format_name(named.source) : named.own_name;
}

std::optional<WeightFormat> weight_format_from_name(std::string_view name) {
  for (const FormatInfo& candidate : kFormats) {
    if (weight_format_name(candidate.format) == name) return candidate.format;
  }
  return std::nullopt;
}

WeightFormat native_format(SourceFormat source) {
  for (const FormatInfo& candidate : kFormats) {
    const bool holds_blocks = candidate.scale_cols == source_block_values(candidate.source);
    if (candidate.source == source && holds_blocks && is_quantized(candidate.format)) return candidate.format;
  }
  return WeightFormat::kBf16;
}

bool is_quantized(WeightFormat format) { return format != WeightFormat::kF32 && format != WeightFormat::kBf16; }

const packed::Superblock& superblock_of(WeightFormat format) {
  LLMSRV_CHECK(is_quantized(format));
  return info(format).superblock;
}

}  // namespace llmsrv
