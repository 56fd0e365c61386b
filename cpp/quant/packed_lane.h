// One row of a packed panel: where the integers and scales of its blocks go, by packed_layout.h.
// Thread rule: the rows of a panel share bytes; one thread at a time may store into a panel.
#pragma once

#include <cstddef>

#include "cpp/quant/quant_block.h"
#include "cpp/quant/weight_format.h"

namespace llmsrv {

// Block `block` of row `lane` of a panel. `block` counts blocks of source_of(format), from column 0.
struct LaneBlock {
  int lane = 0;  // 0 <= lane < packed::kPanelRows
  int block = 0;
};

// Both REQUIRE a quantized format. load_block() gives back exactly what store_block() was given; blocks that share a
// scale have to be given the same one.
void store_block(WeightFormat format, std::byte* panel, LaneBlock at, const QuantBlock& block);
void load_block(WeightFormat format, const std::byte* panel, LaneBlock at, QuantBlock& block);

}  // namespace llmsrv
