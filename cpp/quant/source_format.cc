#include "cpp/quant/source_format.h"

#include <array>
#include <cstring>

#include "cpp/base/check.h"
#include "cpp/base/float16.h"
#include "cpp/quant/quant_block.h"

namespace llmsrv {
namespace {

struct FormatInfo {
  SourceFormat format;
  std::string_view name;
  int block_values;
  std::size_t block_bytes;
};

// In the order of the enum, so that a format is its own index.
constexpr std::array<FormatInfo, 11> kFormats = {{
    {SourceFormat::kF32, "f32", 1, 4},
    {SourceFormat::kF16, "f16", 1, 2},
    {SourceFormat::kBf16, "bf16", 1, 2},
    {SourceFormat::kQ4_0, "q4_0", 32, 18},
    {SourceFormat::kQ4_1, "q4_1", 32, 20},
    {SourceFormat::kQ5_0, "q5_0", 32, 22},
    {SourceFormat::kQ5_1, "q5_1", 32, 24},
    {SourceFormat::kQ8_0, "q8_0", 32, 34},
    {SourceFormat::kQ4_K, "q4_k", 256, 144},
    {SourceFormat::kQ5_K, "q5_k", 256, 176},
    {SourceFormat::kQ6_K, "q6_k", 256, 210},
}};

const FormatInfo& info(SourceFormat format) { return kFormats[static_cast<std::size_t>(format)]; }

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// Rows of plain types: `cols` values one after the other, at any address, little endian as we are.
void unpack_plain_row(SourceFormat format, const std::byte* in, std::int64_t cols, float* out) {
  if (format == SourceFormat::kF32) {
    std::memcpy(out, in, static_cast<std::size_t>(cols) * sizeof(float));
  } else if (format == SourceFormat::kF16) {
    for (std::int64_t k = 0; k < cols; ++k) out[k] = f16_to_float(load<std::uint16_t>(in + 2 * k));
  } else {
    for (std::int64_t k = 0; k < cols; ++k) out[k] = bf16_to_float(load<std::uint16_t>(in + 2 * k));
  }
}

}  // namespace

std::optional<SourceFormat> source_format_from_name(std::string_view name) {
  for (const FormatInfo& candidate : kFormats) {
    if (candidate.name == name) return candidate.format;
  }
  return std::nullopt;
}

std::string_view source_format_name(SourceFormat format) { return info(format).name; }

int source_block_values(SourceFormat format) { return info(format).block_values; }
std::size_t source_block_bytes(SourceFormat format) { return info(format).block_bytes; }

std::size_t source_row_bytes(SourceFormat format, std::int64_t cols) {
  LLMSRV_CHECK(cols >= 0 && cols % source_block_values(format) == 0);
  return static_cast<std::size_t>(cols / source_block_values(format)) * source_block_bytes(format);
}

void unpack_row(SourceFormat format, const std::byte* source, std::int64_t cols, float* out) {
  const FormatInfo& layout = info(format);
  if (layout.block_values == 1) return unpack_plain_row(format, source, cols, out);
  QuantBlock block;
  for (std::int64_t done = 0; done < cols; done += layout.block_values, source += layout.block_bytes) {
    read_block(format, source, block);
    block_values(format, block, out + done);
  }
}

}  // namespace llmsrv
