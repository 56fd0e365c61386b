// A file with all weights of one model as they stand in memory, so that a later start maps them instead of packing
// them.
//
//   text     what decides where each byte stands and what it means: version, layout of the formats, the caller's key,
//            name, format, shape and place of every piece; padded with zeros to a page
//   pieces   each matrix and each vector of the model once, in the order of their first names; at whole cache lines
//
// A file is used only if its text is, byte for byte, the one that this program would write for this model and key, and
// its size is the one that follows. So nothing in it is ever parsed. What the pieces hold is not looked at: every byte
// of a piece is a part of some number, and no number can lead out of the memory of a matrix.
// Thread rule: as Weights::set().
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cpp/base/mapped_file.h"
#include "cpp/model/weights.h"

namespace llmsrv {

// The text for these weights, without the padding. `key` says which bytes of which checkpoint they are made of.
std::string packed_file_text(Weights& weights, const std::string& key);

// Writes the file to an open, empty one. Returns what went wrong. REQUIRES: all weights are set
std::optional<std::string> write_packed_file(Weights& weights, const std::string& key, int file_number);

// Has all weights stand in the file, which stays mapped as long as they live. Returns why it is not the file of these
// weights; then nothing has changed. REQUIRES: no weight is set
std::optional<std::string> map_packed_file(Weights& weights, const std::string& key,
                                           const std::shared_ptr<const MappedFile>& file);

}  // namespace llmsrv
