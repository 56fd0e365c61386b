// What the operations of a kernel table give for fixed inputs, as hashes. Another architecture must give the same as
// this one for the table "scalar": the inputs are made of integers alone, and nothing that is computed depends on a
// library. No pybind11 here: kernel_digests_main.cc is a program for machines without Python.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace llmsrv::testing {

// Every operation x storage type: its name and the hash of the bits of its results.
std::vector<std::pair<std::string, std::uint64_t>> kernel_digests(const std::string& isa);

}  // namespace llmsrv::testing
