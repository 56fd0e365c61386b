#include "cpp/model/weight_formats.h"

#include <algorithm>
#include <array>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cpp/tensor/dtype.h"

namespace llmsrv {
namespace {

using Kind = WeightsDtype::Kind;

// Large groups first.
constexpr std::array kInt8Formats = {WeightFormat::kS8G128, WeightFormat::kS8G64, WeightFormat::kS8};
constexpr std::array kInt4Formats = {WeightFormat::kU4G128, WeightFormat::kU4G64, WeightFormat::kU4};

// The first format whose groups are as large as allowed and divide a row.
std::optional<WeightFormat> first_fitting(std::span<const WeightFormat> formats, int cols, int group_cols_max) {
  for (const WeightFormat format : formats) {
    if (scale_cols(format) <= group_cols_max && cols % scale_cols(format) == 0) return format;
  }
  return std::nullopt;
}

WeightFormat chosen(const WeightInfo& weight, SourceFormat source, const WeightsDtype& dtype) {
  if (dtype.kind == Kind::kF32) return WeightFormat::kF32;
  if (dtype.kind == Kind::kBf16) return WeightFormat::kBf16;
  if (dtype.kind == Kind::kAuto || source_block_values(source) != 1) return native_format(source);
  const bool is_table = weight.name == "embed" || weight.name == "lm_head";
  const int cols = weight.shape[1];
  const std::optional<WeightFormat> fitting =
      dtype.kind == Kind::kInt8 ? first_fitting(kInt8Formats, cols, dtype.group_cols)
      : is_table                ? first_fitting(kInt8Formats, cols, packed::kGroupCols)  // larger ones save no memory
                                : first_fitting(kInt4Formats, cols, dtype.group_cols);
  return fitting.value_or(native_format(source));
}

}  // namespace

std::optional<WeightsDtype> weights_dtype_named(std::string_view name) {
  if (name == "auto") return WeightsDtype{Kind::kAuto};
  if (name == dtype_name(DType::kBf16)) return WeightsDtype{Kind::kBf16};
  if (name == dtype_name(DType::kF32)) return WeightsDtype{Kind::kF32};
  for (const auto& [prefix, kind] : {std::pair{"int8", Kind::kInt8}, std::pair{"int4", Kind::kInt4}}) {
    if (name == prefix) return WeightsDtype{kind};
    if (name == prefix + std::string("-g64")) return WeightsDtype{kind, 64};
    if (name == prefix + std::string("-g128")) return WeightsDtype{kind, 128};
  }
  return std::nullopt;
}

WeightFormats choose_weight_formats(const ModelSpec& spec, const std::map<std::string, SourceFormat>& sources,
                                    const WeightsDtype& dtype) {
  const std::vector<WeightInfo> weights = expected_weights(spec);
  for (const auto& [name, source] : sources) {
    if (std::ranges::find(weights, name, &WeightInfo::name) == weights.end()) {
      throw std::invalid_argument("unknown weight '" + name + "'");
    }
  }
  WeightFormats formats;
  for (const WeightInfo& weight : weights) {
    if (weight.shape.size() != 2) continue;
    const auto named = sources.find(weight.name);
    const SourceFormat source = named == sources.end() ? SourceFormat::kF32 : named->second;
    if (weight.shape[1] % source_block_values(source) != 0) {
      throw std::invalid_argument("weight '" + weight.name + "': rows of " + std::to_string(weight.shape[1]) +
                                  " values are no whole blocks of " + std::string(source_format_name(source)));
    }
    formats[weight.name] = chosen(weight, source, dtype);
  }
  return formats;
}

}  // namespace llmsrv
