#include "cpp/model/weight_formats.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace llmsrv {
namespace {

WeightFormat chosen(const WeightInfo& weight, SourceFormat source, WeightsDtype dtype) {
  if (dtype == WeightsDtype::kF32) return WeightFormat::kF32;
  if (dtype == WeightsDtype::kBf16) return WeightFormat::kBf16;
  const bool quantizes = source_block_values(source) == 1 && weight.shape[1] % packed::kGroupCols == 0;
  if (dtype == WeightsDtype::kAuto || !quantizes) return native_format(source);
  const bool is_table = weight.name == "embed" || weight.name == "lm_head";
  return dtype == WeightsDtype::kInt8 || is_table ? WeightFormat::kS8 : WeightFormat::kU4;
}

}  // namespace

WeightFormats choose_weight_formats(const ModelSpec& spec, const std::map<std::string, SourceFormat>& sources,
                                    WeightsDtype dtype) {
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
