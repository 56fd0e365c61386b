// What the tests and the benchmarks of operations share: a backend with its threads, a cache, NumPy arrays as views.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

#include "cpp/base/thread_pool.h"
#include "cpp/cpu/cpu_backend.h"
#include "python/bindings/testing/testing.h"

namespace llmsrv::testing {

namespace py = pybind11;

using Floats = py::array_t<float>;
using Ints = py::array_t<std::int32_t, py::array::c_style | py::array::forcecast>;

// A window onto a NumPy matrix, which may be a slice of columns.
inline TensorView view(Floats& array) {
  if (array.ndim() != 2 || (array.size() > 0 && array.strides(1) != sizeof(float))) {
    throw std::invalid_argument("need a float32 matrix with adjacent columns");
  }
  const int cols = static_cast<int>(array.shape(1));
  const int stride = array.shape(0) > 1 ? static_cast<int>(array.strides(0) / py::ssize_t{sizeof(float)}) : cols;
  return {array.mutable_data(), DType::kF32, static_cast<int>(array.shape(0)), cols, stride};
}

inline std::span<const float> span(const Floats& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}
inline std::span<const std::int32_t> span(const Ints& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

inline DType dtype_from_name(const std::string& name) {
  if (name == "bf16") return DType::kBf16;
  if (name == "f32") return DType::kF32;
  if (name == "int8") return DType::kInt8;
  throw std::invalid_argument("cache dtype '" + name + "'");
}

// A backend with a pool of its own.
struct TestBackend {
  TestBackend(int threads, const std::string& isa) : pool(threads), backend(make_cpu_backend(pool, isa)) {
    constexpr int kMostRows = 600;
    constexpr int kWidestMatrix = 8192;
    backend->reserve({kMostRows, 1, 1, kWidestMatrix, {1, 1, 2}, 0, 0});  // for operations that need no attention
  }
  // Runs one operation as a step of its own; how often it allocated.
  template <typename Operation>
  long in_step(const StepInputs& inputs, const Operation& operation);

  ThreadPool pool;
  std::unique_ptr<Backend> backend;
};

template <typename Operation>
long TestBackend::in_step(const StepInputs& inputs, const Operation& operation) {
  long allocations = 0;
  backend->run_step(inputs, [&](int) {
    const long before = allocation_count();
    operation();
    allocations = allocation_count() - before;
  });
  return allocations;
}

// One layer's cache.
struct KvCache {
  KvCache(const TestBackend& test, const HeadShape& head_shape, int block_size, const std::string& dtype, int blocks)
      : shape(head_shape) {
    layer.block_size = block_size;
    layer.dtype = dtype_from_name(dtype);
    layer.blocks = blocks;
    layer.block_bytes = test.backend->kv_block_bytes(shape, block_size, layer.dtype);
    buffer = AlignedBuffer(layer.block_bytes * static_cast<std::size_t>(blocks));
    layer.data = buffer.data();
  }
  HeadShape shape;
  AlignedBuffer buffer;
  KvLayer layer;
};

}  // namespace llmsrv::testing
