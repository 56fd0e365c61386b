#include "cuda/device/staging.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace llmsrv::on_device {
namespace {

constexpr int kNoiseThreads = 256;
constexpr int kGuard = 0xff;

// A stream for copies, as nothing may be copied on one that is being captured.
cudaStream_t copies() {
  static const cudaStream_t kCopies = [] {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    return stream;
  }();
  return kCopies;
}

__global__ void fill_noise(std::uint32_t* words, std::size_t count, bool bf16) {
  const std::size_t at = static_cast<std::size_t>(blockIdx.x) * kNoiseThreads + threadIdx.x;
  if (at >= count) return;
  auto bits = static_cast<std::uint32_t>(at) * 2654435761u;
  bits = (bits ^ bits >> 15) * 2246822519u;
  bits ^= bits >> 13;
  // bf16: any sign and fraction, magnitudes from 1/8 to 1/2.
  words[at] = bf16 ? (bits & 0x80ff80ffu) | 0x3e003e00u : bits & 0x3f3f3f3fu;
}

struct Event {
  Event() { check(cudaEventCreate(&event), "an event"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event); }
  cudaEvent_t event = nullptr;
};

}  // namespace

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw DeviceError(std::string(what) + ": " + cudaGetErrorString(error));
}

std::size_t guard_bytes() {
  const char* bytes = std::getenv("LLMSRV_DEVICE_GUARD_BYTES");
  return bytes != nullptr ? static_cast<std::size_t>(std::atoi(bytes)) : 256;
}

Guarded::Guarded(std::size_t bytes) : guard_bytes_(guard_bytes()), bytes_(bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, std::max<std::size_t>(bytes_ + 2 * guard_bytes_, 1)), "memory of the device");
  whole_.reset(static_cast<unsigned char*>(memory));
  check(cudaMemsetAsync(memory, kGuard, guard_bytes_, copies()), "a guard");
  check(cudaMemsetAsync(data() + bytes_, kGuard, guard_bytes_, copies()), "a guard");
  check(cudaStreamSynchronize(copies()), "a guard");
}

void Guarded::upload(const void* from) {
  check(cudaMemcpyAsync(data(), from, bytes_, cudaMemcpyHostToDevice, copies()), "a copy to the device");
  check(cudaStreamSynchronize(copies()), "a copy to the device");
}

void Guarded::download(void* to) const {
  check(cudaMemcpyAsync(to, data(), bytes_, cudaMemcpyDeviceToHost, copies()), "a copy from the device");
  check(cudaStreamSynchronize(copies()), "a copy from the device");
}

void Guarded::check_guards() const {
  std::vector<unsigned char> guards(2 * guard_bytes_);
  const auto bring = [&](unsigned char* to, const unsigned char* from) {
    check(cudaMemcpyAsync(to, from, guard_bytes_, cudaMemcpyDeviceToHost, copies()), "a guard");
  };
  bring(guards.data(), whole_.get());
  bring(guards.data() + guard_bytes_, data() + bytes_);
  check(cudaStreamSynchronize(copies()), "a guard");
  if (!std::all_of(guards.begin(), guards.end(), [](unsigned char byte) { return byte == kGuard; })) {
    throw DeviceError("a kernel wrote beside an array of " + std::to_string(bytes_) + " bytes");
  }
}

Guarded* Staging::find(std::vector<Array>& arrays, const unsigned char* host, std::size_t bytes) {
  for (Array& array : arrays) {
    if (array.host == host && array.memory.bytes() == bytes) return &array.memory;
    if (host < array.host + array.memory.bytes() && array.host < host + bytes) {
      throw std::invalid_argument("two arrays of a call overlap: on a device they are two");
    }
  }
  return nullptr;
}

void* Staging::place_array(void* host, std::size_t bytes) {
  auto* const first = static_cast<unsigned char*>(host);
  if (const Guarded* held = find(held_, first, bytes)) return held->data();
  // What a graph captures may come from arrays that are gone by now: an address says nothing.
  if (capturing_) return place_values(host, bytes);
  if (const Guarded* placed = find(arrays_, first, bytes)) return placed->data();
  arrays_.push_back({first, Guarded(bytes)});
  arrays_.back().memory.upload(host);
  return arrays_.back().memory.data();
}

void* Staging::place_values(const void* host, std::size_t bytes) {
  values_.emplace_back(bytes);
  values_.back().upload(host);
  return values_.back().data();
}

void Staging::finish() {
  check(cudaStreamSynchronize(kStream), "a kernel");
  for (const Guarded& values : values_) values.check_guards();
  for (const Array& array : held_) array.memory.check_guards();
  for (const Array& array : arrays_) {
    array.memory.check_guards();
    array.memory.download(array.host);
  }
  forget();
}

void Staging::forget() {
  arrays_.clear();
  values_.clear();
}

void Staging::hold(void* host, std::size_t bytes, Noise noise) {
  auto* const first = static_cast<unsigned char*>(host);
  if (find(held_, first, bytes) != nullptr) return;
  held_.push_back({first, Guarded(bytes)});
  const std::size_t words = bytes / sizeof(std::uint32_t);
  if (words == 0) return;
  const auto blocks = static_cast<unsigned>((words + kNoiseThreads - 1) / kNoiseThreads);
  fill_noise<<<blocks, kNoiseThreads, 0, kStream>>>(reinterpret_cast<std::uint32_t*>(held_.back().memory.data()), words,
                                                    noise == Noise::kBf16);
  check(cudaGetLastError(), "noise");
  check(cudaStreamSynchronize(kStream), "noise");
}

std::vector<Guarded> Staging::end_capture() {
  capturing_ = false;
  return std::exchange(values_, {});
}

std::vector<float> Graph::milliseconds(int repeats) {
  std::vector<Event> events(static_cast<std::size_t>(repeats) + 1);
  check(cudaEventRecord(events[0].event, kStream), "an event");
  for (std::size_t i = 1; i < events.size(); ++i) {
    check(cudaGraphLaunch(exec_.get(), kStream), "a graph");
    check(cudaEventRecord(events[i].event, kStream), "an event");
  }
  check(cudaStreamSynchronize(kStream), "a graph");
  std::vector<float> result(static_cast<std::size_t>(repeats));
  for (std::size_t i = 0; i < result.size(); ++i) {
    check(cudaEventElapsedTime(&result[i], events[i].event, events[i + 1].event), "an event");
  }
  return result;
}

}  // namespace llmsrv::on_device
