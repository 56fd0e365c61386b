#include "cuda/emulation/runtime.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <new>

#include "cuda/emulation/emulator.h"
#include "cuda/emulation/streams.h"
#include "cuda/plugin/last_error.h"
#include "cuda/plugin/launches.h"
#include "cuda/plugin/products.h"

namespace llmsrv::emulation {
namespace {

using cuda::failed;
using device::Code;

constexpr std::size_t kAlignment = 256;
constexpr int kNeverWritten = 0xff;  // NaN in every floating-point format

// Device memory that is held, and its size.
std::map<void*, std::size_t>& allocations() {
  static std::map<void*, std::size_t> allocations;
  return allocations;
}

// Held by every call of the table but launches.
std::mutex& device_mutex() {
  static std::mutex mutex;
  return mutex;
}

// Calls f; what it throws is the device's failure.
template <typename F>
Code guarded(const F& f) {
  const std::lock_guard lock(device_mutex());
  try {
    f();
    return Code::kOk;
  } catch (const std::exception& error) {
    return failed(Code::kFailed, std::string("emulated device: ") + error.what());
  }
}

Stream* stream_of(device::Stream stream) { return static_cast<Stream*>(stream); }
Event* event_of(device::Event event) { return static_cast<Event*>(event); }
Graph* graph_of(device::Graph graph) { return static_cast<Graph*>(graph); }

void* fresh_memory(std::size_t bytes) {
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, kNeverWritten, rounded);
  ++device_counts().allocations;
  return memory;
}

Code select(std::int32_t index) { return index == 0 ? Code::kOk : failed(Code::kFailed, "there is one device, 0"); }

Code properties(std::int32_t, device::Properties* result) {
  *result = {};
  std::memcpy(result->name, "emulated", sizeof "emulated");
  result->memory_bytes = device_options().memory_bytes;
  result->free_bytes = device_options().memory_bytes - device_counts().held_bytes;
  result->major = device_options().is_hopper ? 9 : 8;
  result->multiprocessors = 1;
  return Code::kOk;
}

Code allocate(std::size_t bytes, void** memory) {
  if (device_counts().held_bytes + bytes > device_options().memory_bytes) {
    return failed(Code::kOutOfMemory, "emulated device: out of memory");
  }
  return guarded([&] {
    *memory = fresh_memory(bytes);
    allocations()[*memory] = bytes;
    device_counts().held_bytes += bytes;
  });
}
Code release(void* memory) {
  return guarded([&] {
    synchronize_all();
    device_counts().held_bytes -= allocations().at(memory);
    allocations().erase(memory);
    std::free(memory);
  });
}
Code allocate_pinned(std::size_t bytes, void** memory) {
  return guarded([&] { *memory = fresh_memory(bytes); });
}
Code release_pinned(void* memory) {
  return guarded([&] {
    synchronize_all();
    std::free(memory);
  });
}

Code new_stream(device::Stream* stream) {
  return guarded([&] { *stream = create_stream(); });
}
Code drop_stream(device::Stream stream) {
  return guarded([&] { destroy_stream(stream_of(stream)); });
}
Code new_event(device::Event* event) {
  return guarded([&] { *event = create_event(); });
}
Code new_timed_event(device::Event* event) {
  return guarded([&] { *event = create_timed_event(); });
}
Code drop_event(device::Event event) {
  return guarded([&] { destroy_event(event_of(event)); });
}
Code record_event(device::Event event, device::Stream stream) {
  return guarded([&] { record(event_of(event), stream_of(stream)); });
}
Code wait_for_event(device::Stream stream, device::Event event) {
  return guarded([&] { wait(stream_of(stream), event_of(event)); });
}

// Of the host, whether there is something to wait for or not.
void note_synchronization(bool waits) {
  device_counts().synchronizations += waits ? 1 : 0;
  const auto good = device_options().good_synchronizations;
  if (good && static_cast<std::int64_t>(device_counts().synchronizations) > *good) throw Error("it is gone");
}
Code synchronize_event(device::Event event) {
  return guarded([&] {
    note_synchronization(is_ahead(event_of(event)));
    synchronize(event_of(event));
  });
}
Code elapsed_between(device::Event from, device::Event to, double* seconds) {
  return guarded([&] { *seconds = elapsed_s(event_of(from), event_of(to)); });
}
Code synchronize_stream(device::Stream stream) {
  return guarded([&] {
    note_synchronization(is_busy(stream_of(stream)));
    synchronize(stream_of(stream));
  });
}

Code copy(void* to, const void* from, std::size_t bytes, device::Stream stream) {
  return guarded([&] {
    ++device_counts().copies;
    submit(stream_of(stream), [=] { std::memcpy(to, from, bytes); });
  });
}
Code fill(void* to, std::int32_t byte, std::size_t bytes, device::Stream stream) {
  return guarded([&] { submit(stream_of(stream), [=] { std::memset(to, byte, bytes); }); });
}

Code start_capture(device::Stream stream) {
  return guarded([&] { begin_capture(stream_of(stream)); });
}
Code stop_capture(device::Stream stream, device::Graph* graph) {
  return guarded([&] { *graph = end_capture(stream_of(stream)); });
}
Code run_graph(device::Graph graph, device::Stream stream) {
  return guarded([&] {
    ++device_counts().graph_launches;
    launch_graph(graph_of(graph), stream_of(stream));
  });
}
Code drop_graph(device::Graph graph) {
  return guarded([&] { destroy_graph(graph_of(graph)); });
}

constexpr device::RuntimeTable kRuntime{
    .select = &select,
    .properties = &properties,
    .allocate = &allocate,
    .release = &release,
    .allocate_pinned = &allocate_pinned,
    .release_pinned = &release_pinned,
    .create_stream = &new_stream,
    .destroy_stream = &drop_stream,
    .create_event = &new_event,
    .create_timed_event = &new_timed_event,
    .destroy_event = &drop_event,
    .record = &record_event,
    .wait = &wait_for_event,
    .synchronize_event = &synchronize_event,
    .elapsed_s = &elapsed_between,
    .synchronize = &synchronize_stream,
    .copy = &copy,
    .fill = &fill,
    .begin_capture = &start_capture,
    .end_capture = &stop_capture,
    .launch_graph = &run_graph,
    .destroy_graph = &drop_graph,
};

int count_devices(char*, std::size_t) { return 1; }

}  // namespace

DeviceOptions& device_options() {
  static DeviceOptions options;
  return options;
}

DeviceCounts& device_counts() {
  static DeviceCounts counts;
  return counts;
}

const PluginTable& plugin_table() {
  static const PluginTable table{
      kPluginAbi, &count_devices, &kRuntime, &cuda::launch_table(), &cuda::product_table(), &cuda::last_error};
  return table;
}

cuda::NvidiaLibrary stand_in_library() {
  Dl_info here{};
  dladdr(reinterpret_cast<const void*>(&count_devices), &here);
  const std::string folder = std::filesystem::path(here.dli_fname).parent_path().string();
  const char* file = device_options().has_library ? "libllmsrv_stand_in_cublaslt.so" : "libllmsrv_no_library.so";
  return cuda::NvidiaLibrary({file, {folder}, "build it"});
}

}  // namespace llmsrv::emulation

namespace llmsrv::cuda {

// The stand-in's work goes to the streams here, in their own order.
cublaslt::Functions open_cublaslt() {
  using Queue = void(void*, std::function<void()>);
  const NvidiaLibrary library = emulation::stand_in_library();
  library.function<void(Queue*)>("stand_in_queue")([](void* stream, std::function<void()> work) {
    emulation::submit(static_cast<emulation::Stream*>(stream), std::move(work));
  });
  return cublaslt::Functions(library);
}

}  // namespace llmsrv::cuda
