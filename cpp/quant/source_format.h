// The formats in which weight files hold rows, and their exact meaning as floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace llmsrv {

// Plain types, and GGUF's block types (ggml's names).
enum class SourceFormat { kF32, kF16, kBf16, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K };

// By lower-case name: "f32", "f16", "bf16", "q4_0", ..., "q6_k". Empty when unknown.
std::optional<SourceFormat> source_format_from_name(std::string_view name);
std::string_view source_format_name(SourceFormat format);

// Values per block (1 for plain types) and bytes per block.
int source_block_values(SourceFormat format);
std::size_t source_block_bytes(SourceFormat format);

// Bytes of one row of `cols` values. REQUIRES: cols % source_block_values(format) == 0
std::size_t source_row_bytes(SourceFormat format, std::int64_t cols);

// Unpacks one row to floats, exactly as the format defines them.
// REQUIRES: `source` holds source_row_bytes(format, cols) bytes; `out` has room for cols floats.
void unpack_row(SourceFormat format, const std::byte* source, std::int64_t cols, float* out);

}  // namespace llmsrv
