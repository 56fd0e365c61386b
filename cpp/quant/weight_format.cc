#include "cpp/quant/weight_format.h"

#include <array>

#include "cpp/base/check.h"

namespace llmsrv {
namespace {

// In the order of the enum, so that a format is its own index. Plain types have an empty superblock.
struct FormatInfo {
  WeightFormat format;
  SourceFormat source;
  packed::Superblock superblock;
};

constexpr std::array<FormatInfo, 10> kFormats = {{
    {WeightFormat::kF32, SourceFormat::kF32, {}},
    {WeightFormat::kBf16, SourceFormat::kBf16, {}},
    {WeightFormat::kU4, SourceFormat::kQ4_1, packed::kU4},
    {WeightFormat::kU4Zero, SourceFormat::kQ4_0, packed::kU4Zero},
    {WeightFormat::kU5, SourceFormat::kQ5_1, packed::kU5},
    {WeightFormat::kU5Zero, SourceFormat::kQ5_0, packed::kU5Zero},
    {WeightFormat::kS8, SourceFormat::kQ8_0, packed::kS8},
    {WeightFormat::kU4K, SourceFormat::kQ4_K, packed::kU4K},
    {WeightFormat::kU5K, SourceFormat::kQ5_K, packed::kU5K},
    {WeightFormat::kU6K, SourceFormat::kQ6_K, packed::kU6K},
}};

const FormatInfo& info(WeightFormat format) { return kFormats[static_cast<std::size_t>(format)]; }

}  // namespace

SourceFormat source_of(WeightFormat format) { return info(format).source; }
std::string_view weight_format_name(WeightFormat format) { return source_format_name(info(format).source); }

std::optional<WeightFormat> weight_format_from_name(std::string_view name) {
  for (const FormatInfo& candidate : kFormats) {
    if (source_format_name(candidate.source) == name) return candidate.format;
  }
  return std::nullopt;
}

WeightFormat native_format(SourceFormat source) {
  for (const FormatInfo& candidate : kFormats) {
    if (candidate.source == source && is_quantized(candidate.format)) return candidate.format;
  }
  return WeightFormat::kBf16;
}

bool is_quantized(WeightFormat format) { return format != WeightFormat::kF32 && format != WeightFormat::kBf16; }

const packed::Superblock& superblock_of(WeightFormat format) {
  LLMSRV_CHECK(is_quantized(format));
  return info(format).superblock;
}

}  // namespace llmsrv
