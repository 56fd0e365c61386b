// Caches of keys and values as arrays of NumPy, and the element types of queries and caches by those of NumPy.
#pragma once

#include <array>
#include <bit>
#include <type_traits>

#include "cuda/emulation/bindings.h"
#include "cuda/kernels/kv_layout.cuh"

namespace llmsrv::emulation {

// kv_heads, block_size, head_dim
using KvShape = std::array<int, 3>;

// cache: blocks one after the other, as KvLayout says.
template <typename T>
cuda::KvLayout<T> kv_layout(const pybind11::array& cache, const KvShape& shape) {
  const auto [kv_heads, block_size, head_dim] = shape;
  return {pointer<T>(cache), kv_heads, block_size, std::countr_zero(static_cast<unsigned>(block_size)), head_dim};
}

// Calls f with values of the types of queries and cache: float32, float16, uint16 (bf16), uint8 (fp8) and int8.
template <typename F>
void with_types_of(const pybind11::array& queries, const pybind11::array& cache, const F& f) {
  const char kind = cache.dtype().kind();
  const auto with_cache = [&]<typename T>(T query) {
    if constexpr (!std::is_same_v<T, cuda::Half>) {
      if (cache.itemsize() == 1 && kind == 'i') return f(query, cuda::Int8{});
    }
    if (cache.itemsize() == 1) return f(query, cuda::Fp8{});
    if constexpr (std::is_same_v<T, float>) {
      if (cache.itemsize() == 2) return kind == 'f' ? f(query, cuda::Half{}) : f(query, cuda::Bf16{});
    }
    f(query, query);
  };
  if (queries.itemsize() == 4) return with_cache(float{});
  queries.dtype().kind() == 'f' ? with_cache(cuda::Half{}) : with_cache(cuda::Bf16{});
}

}  // namespace llmsrv::emulation
