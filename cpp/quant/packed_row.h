// A row of a file's blocks to its lane of a panel, in words of four integers. It does what read_block() and
// store_block() do one integer at a time: a packed line has four neighbouring columns of a row in a word, and so have
// blocks, or nearly so. Loading is bound by this.
// Thread rule: as store_block's.
#pragma once

#include <cstddef>

#include "cpp/quant/weight_format.h"

namespace llmsrv {

// `source`: `blocks` blocks of source_of(format), at any address. REQUIRES: accepts(format, source_of(format)) of
// packed_matrix.h, and a quantized format
void store_source_row(WeightFormat format, const std::byte* source, int blocks, std::byte* panel, int lane);

}  // namespace llmsrv
