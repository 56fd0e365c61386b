// How Python reaches the launches, with the emulator and on a device: arrays of NumPy become pointers, bf16 travels as
// uint16. The sources of the bindings know nothing of which of the two they are built for.
#pragma once

#include <cuda_runtime.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <vector>

#include "cuda/kernels/packed_group.cuh"

namespace llmsrv::emulation {

// Where a kernel finds memory of the host: with the emulator, where it is; on a device, in a copy. All memory that a
// kernel touches must have come through here.
// Of an array: what the kernel has written is in the array when the call is over.
void* array_in_reach(void* memory, std::size_t bytes);
// Of anything else: for the kernel alone.
void* values_in_reach(void* memory, std::size_t bytes);

// Where launches and libraries work.
cudaStream_t launch_stream();

inline void* in_reach(pybind11::array memory) {
  if (!(memory.flags() & pybind11::array::c_style)) throw std::invalid_argument("an array is not contiguous");
  return array_in_reach(memory.mutable_data(), static_cast<std::size_t>(memory.nbytes()));
}
template <typename T>
T* in_reach(std::vector<T>& values) {
  return static_cast<T*>(values_in_reach(values.data(), values.size() * sizeof(T)));
}

// The memory of an array of elements as large as T. Throws std::invalid_argument for another size or a gap.
template <typename T>
T* pointer(const pybind11::array& memory) {
  if (memory.itemsize() != static_cast<pybind11::ssize_t>(sizeof(T))) {
    throw std::invalid_argument("an array has the wrong element size");
  }
  return static_cast<T*>(in_reach(memory));
}
template <typename T>
T* pointer_or_null(const pybind11::object& memory) {
  return memory.is_none() ? nullptr : pointer<T>(memory);
}
// Of a matrix whose rows may lie apart.
template <typename T>
T* matrix_pointer(pybind11::array memory) {
  if (memory.itemsize() != static_cast<pybind11::ssize_t>(sizeof(T)) || memory.strides(1) != memory.itemsize()) {
    throw std::invalid_argument("a matrix has the wrong element size or gaps inside its rows");
  }
  if (memory.shape(0) == 0) return static_cast<T*>(array_in_reach(memory.mutable_data(), 0));
  const pybind11::ssize_t bytes = (memory.shape(0) - 1) * memory.strides(0) + memory.shape(1) * memory.itemsize();
  return static_cast<T*>(array_in_reach(memory.mutable_data(), static_cast<std::size_t>(bytes)));
}
inline int stride_of(const pybind11::array& memory) { return static_cast<int>(memory.strides(0) / memory.itemsize()); }
inline int rows_of(const pybind11::array& memory) { return static_cast<int>(memory.shape(0)); }
inline int cols_of(const pybind11::array& memory) { return static_cast<int>(memory.shape(1)); }

// A format by the name of the files' type. Throws std::invalid_argument.
cuda::PackedFormat format_named(const std::string& name);

void bind_attention(pybind11::module_& module);
void bind_communicator(pybind11::module_& module);
void bind_conformance(pybind11::module_& module);
void bind_device(pybind11::module_& module);  // of the emulator alone
void bind_fp8(pybind11::module_& module);
void bind_hopper(pybind11::module_& module);
void bind_library(pybind11::module_& module);  // of the host alone
void bind_linear(pybind11::module_& module);
void bind_products(pybind11::module_& module);
void bind_rows(pybind11::module_& module);
void bind_sampling(pybind11::module_& module);
inline void bind_launches(pybind11::module_& module) {
  bind_attention(module);
  bind_communicator(module);
  bind_conformance(module);
  bind_fp8(module);
  bind_hopper(module);
  bind_linear(module);
  bind_products(module);
  bind_rows(module);
  bind_sampling(module);
}

}  // namespace llmsrv::emulation
