// What a device's plug-in library exports: one function that returns one table. Plain C types only, as the two sides
// may come from different compilers. Nothing behind the table throws.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpp/ops/launches.h"

namespace llmsrv {

// Rises with every change of the table or of what it reaches. A plug-in of another number is not used.
constexpr std::uint32_t kPluginAbi = 3;

namespace device {

struct Properties {
  char name[256];
  std::size_t memory_bytes;
  std::size_t free_bytes;  // now
  std::int32_t major;      // compute capability
  std::int32_t minor;
  std::int32_t multiprocessors;
};

using Event = void*;
using Graph = void*;

// The device's runtime. Streams run their work in order, and beside each other. A copy or a launch that is queued reads
// its sources when its turn comes. Host memory of copies is pinned: allocate_pinned().
struct RuntimeTable {
  // For the calling thread; every other function works on the thread's device, 0 at first.
  Code (*select)(std::int32_t index);
  Code (*properties)(std::int32_t index, Properties*);
  Code (*allocate)(std::size_t bytes, void** memory);  // at a multiple of 256 bytes
  Code (*release)(void* memory);
  Code (*allocate_pinned)(std::size_t bytes, void** memory);
  Code (*release_pinned)(void* memory);

  Code (*create_stream)(Stream*);
  Code (*destroy_stream)(Stream);
  Code (*create_event)(Event*);
  // One that elapsed_s() takes; to record it costs the device a little more.
  Code (*create_timed_event)(Event*);
  Code (*destroy_event)(Event);
  // The event stands for what the stream was given so far; recorded again, for more.
  Code (*record)(Event, Stream);
  // What the stream is given from now on waits for what the event stands for now. An event that was never recorded
  // holds nothing up.
  Code (*wait)(Stream, Event);
  // The caller waits. Reports also what earlier work on the device failed with.
  Code (*synchronize_event)(Event);
  // Time of the device between what two timed events stand for. Fails before both were reached.
  Code (*elapsed_s)(Event from, Event to, double* seconds);
  Code (*synchronize)(Stream);

  Code (*copy)(void* to, const void* from, std::size_t bytes, Stream);
  Code (*fill)(void* to, std::int32_t byte, std::size_t bytes, Stream);

  // What the stream is given between the two is kept and not run; copies keep their addresses. An empty graph is legal.
  Code (*begin_capture)(Stream);
  Code (*end_capture)(Stream, Graph*);
  Code (*launch_graph)(Graph, Stream);
  Code (*destroy_graph)(Graph);
};

// Linear layers by the maker's own library of dense products (cuBLASLt), which is opened at run time. It chooses by the
// number of rows, so that a row's bits depend on how many there are, and it takes weights as bf16.
using Products = void*;

struct ProductOptions {
  void* workspace;  // of the library: device memory that outlives the products
  std::size_t workspace_bytes;
  void* unpacked;  // for weights as plain rows: the same. Room for 16 of them at least
  std::size_t unpacked_bytes;
  std::int32_t rows_max;  // of an input
};

struct ProductTable {
  // Whether the library can be opened. kUnsupported: last_error() says why not.
  Code (*open)();
  Code (*create)(const ProductOptions*, Products*);
  Code (*destroy)(Products);
  // The same as a launch of Linear, on inputs of kBf16 and up to rows_max rows. All rows start at multiples of 16
  // bytes. The first product of a shape looks for algorithms, so it is no part of a capture; later ones take no memory.
  Code (*linear)(Products, const Linear*, Stream);
};

}  // namespace device

struct PluginTable {
  std::uint32_t abi;
  // The number of devices that can be used. When there are none, `why` is a sentence of at most `why_bytes` bytes with
  // its end.
  int (*count_devices)(char* why, std::size_t why_bytes);
  const device::RuntimeTable* runtime;
  const device::LaunchTable* launches;
  const device::ProductTable* products;
  // What this thread's last call failed with, for people. Valid until its next call.
  const char* (*last_error)();
};

// extern "C" const llmsrv::PluginTable* llmsrv_plugin();
constexpr const char* kPluginSymbol = "llmsrv_plugin";
using PluginFunction = const PluginTable* (*)();

}  // namespace llmsrv
