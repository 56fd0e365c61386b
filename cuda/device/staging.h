// Copies of the host's memory on a device, for tests and measurements: how the bindings reach their arrays there.
//
// An array that kernels use travels to the device when it is first named in a call and back when the call is over. One
// that is held stays there over many calls and never comes back. Every copy lies between guards of bytes 0xff, NaN in
// each type: what a kernel reads beside it shows in its result, what it writes there is an error.
//
// Thread rule: one thread.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace llmsrv::on_device {

// A call of CUDA's failed, or a kernel left its memory.
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
void check(cudaError_t error, const char* what);

// The bindings launch on it, as they are compiled with one default stream per thread.
inline const cudaStream_t kStream = cudaStreamPerThread;

// Bytes of a guard: LLMSRV_DEVICE_GUARD_BYTES, else 256. With none, tools that watch allocations see every byte.
std::size_t guard_bytes();

class Guarded {
 public:
  explicit Guarded(std::size_t bytes);

  unsigned char* data() const { return whole_.get() + guard_bytes_; }
  std::size_t bytes() const { return bytes_; }
  void upload(const void* from);
  void download(void* to) const;
  // Throws DeviceError when a guard has changed.
  void check_guards() const;

 private:
  struct Free {
    void operator()(unsigned char* memory) const { cudaFree(memory); }
  };
  std::unique_ptr<unsigned char, Free> whole_;
  std::size_t guard_bytes_;
  std::size_t bytes_;
};

enum class Noise {
  kBf16,   // between -1 and 1
  kBytes,  // 0 to 63: small numbers as integers, scales in half precision, and float8
};

class Staging {
 public:
  void* place_array(void* host, std::size_t bytes);
  void* place_values(const void* host, std::size_t bytes);

  // The call is over: waits for it, brings its arrays back and forgets them. Throws DeviceError.
  void finish();
  // The call failed.
  void forget();

  // Until release(): of the array there is only what the device has, noise at first. The host's memory is not touched.
  void hold(void* host, std::size_t bytes, Noise noise);
  void release() { held_.clear(); }

  // Between the two, what is placed belongs to a graph: nothing is brought back.
  void begin_capture() { capturing_ = true; }
  std::vector<Guarded> end_capture();

 private:
  struct Array {
    unsigned char* host;
    Guarded memory;
  };
  static Guarded* find(std::vector<Array>& arrays, const unsigned char* host, std::size_t bytes);

  std::vector<Array> arrays_;    // of the call
  std::vector<Guarded> values_;  // of the call
  std::vector<Array> held_;
  bool capturing_ = false;
};

// Calls that are run again and again by one launch each.
class Graph {
 public:
  // Owns `exec` and the memory that its kernels use.
  Graph(cudaGraphExec_t exec, std::vector<Guarded> memory) : exec_(exec), memory_(std::move(memory)) {}

  // Of `repeats` runs back to back, each by itself.
  std::vector<float> milliseconds(int repeats);

 private:
  struct Destroy {
    void operator()(cudaGraphExec_t exec) const { cudaGraphExecDestroy(exec); }
  };
  std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, Destroy> exec_;
  std::vector<Guarded> memory_;
};

}  // namespace llmsrv::on_device
