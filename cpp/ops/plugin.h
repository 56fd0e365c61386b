// What a device's plug-in library exports: one function that returns one table. Plain C types only, as the two sides
// may come from different compilers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace llmsrv {

// Rises with every change of the table or of what it reaches. A plug-in of another number is not used.
constexpr std::uint32_t kPluginAbi = 1;

struct PluginTable {
  std::uint32_t abi;
  // The number of devices that can be used. When there are none, `why` is a sentence of at most `why_bytes` bytes with
  // its end. Never throws.
  int (*count_devices)(char* why, std::size_t why_bytes);
};

// extern "C" const llmsrv::PluginTable* llmsrv_plugin();
constexpr const char* kPluginSymbol = "llmsrv_plugin";
using PluginFunction = const PluginTable* (*)();

}  // namespace llmsrv
