// How tests reach the launches: arrays of NumPy become pointers, bf16 travels as uint16.
#pragma once

#include <cuda_runtime.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "cuda/emulation/emulator.h"
#include "cuda/emulation/race.h"

namespace llmsrv::emulation {

// The memory of an array of elements as large as T. Throws std::invalid_argument for another size or a gap.
template <typename T>
T* pointer(pybind11::array memory) {
  if (memory.itemsize() != static_cast<pybind11::ssize_t>(sizeof(T)) || !(memory.flags() & pybind11::array::c_style)) {
    throw std::invalid_argument("an array has the wrong element size or is not contiguous");
  }
  return static_cast<T*>(memory.mutable_data());
}
template <typename T>
T* pointer_or_null(const pybind11::object& memory) {
  return memory.is_none() ? nullptr : pointer<T>(memory);
}
inline int rows_of(const pybind11::array& memory) { return static_cast<int>(memory.shape(0)); }
inline int cols_of(const pybind11::array& memory) { return static_cast<int>(memory.shape(1)); }

void bind_attention(pybind11::module_& module);
void bind_hopper(pybind11::module_& module);
void bind_linear(pybind11::module_& module);
void bind_sampling(pybind11::module_& module);
void bind_rows(pybind11::module_& module);

}  // namespace llmsrv::emulation
