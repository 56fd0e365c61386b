#include "cuda/conformance/peaks.h"
#include "cuda/conformance/wrappers.h"
#include "cuda/emulation/bindings.h"

namespace py = pybind11;

namespace llmsrv::emulation {
namespace {

// The memory of an array whose elements kernels take together: as T, whatever the elements are.
template <typename T>
T* elements(const py::array& memory) {
  return static_cast<T*>(in_reach(memory));
}
int bytes_of(const py::array& memory) { return static_cast<int>(memory.nbytes()); }

// A function of elements: In of the one array become Out of the other.
template <typename In, typename Out>
void bind_map(py::module_& module, const char* name, void (*function)(const In*, Out*, int, cuda::Stream)) {
  module.def(
      name,
      [function](const py::array& in, const py::array& out) {
        const int count = bytes_of(out) / static_cast<int>(sizeof(Out));
        function(elements<const In>(in), elements<Out>(out), count, nullptr);
      },
      py::arg("in_"), py::arg("out"));
}

cuda::Operands operands_named(const std::string& dtype) {
  if (dtype == "bf16") return cuda::Operands::kBf16;
  if (dtype == "f16") return cuda::Operands::kHalf;
  throw std::invalid_argument("no such operands: " + dtype);
}

// The same of either type of operands.
template <typename In, typename Out>
void bind_map(py::module_& module, const char* name,
              void (*function)(const In*, Out*, int, cuda::Operands, cuda::Stream)) {
  module.def(
      name,
      [function](const py::array& in, const py::array& out, const std::string& dtype) {
        const int count = bytes_of(out) / static_cast<int>(sizeof(Out));
        function(elements<const In>(in), elements<Out>(out), count, operands_named(dtype), nullptr);
      },
      py::arg("in_"), py::arg("out"), py::arg("dtype"));
}

void try_multiply_add(const py::array& a, const py::array& b, const py::array& c, const py::array& d,
                      const std::string& dtype) {
  cuda::try_multiply_add({operands_named(dtype), pointer<std::uint16_t>(a), pointer<std::uint16_t>(b),
                          pointer<float>(c), pointer<float>(d), rows_of(a), static_cast<int>(a.shape(2))},
                         nullptr);
}

void try_sums(const py::array& in, const py::array& of_warp, const py::array& of_block) {
  cuda::try_sums({pointer<float>(in), pointer<float>(of_warp), pointer<float>(of_block), rows_of(in), cols_of(in)},
                 nullptr);
}

void bind_wrappers(py::module_& module) {
  module.attr("tried_shared_bytes") = cuda::kTriedSharedBytes;
  module.def(
      "try_copy_async",
      [](const py::array& in, const py::array& wanted, const py::array& out) {
        const auto* mask = pointer<std::int32_t>(wanted);
        bytes_of(in) == 16 * cuda::kTriedCopies
            ? cuda::try_copy_async(elements<uint4>(in), mask, elements<uint4>(out), nullptr)
            : cuda::try_copy_async(elements<std::uint32_t>(in), mask, elements<std::uint32_t>(out), nullptr);
      },
      py::arg("in_"), py::arg("wanted"), py::arg("out"));
  module.def(
      "try_load_matrices",
      [](bool transposed, const py::array& in, const py::array& rows, const py::array& out) {
        cuda::try_load_matrices(transposed, elements<uint4>(in), pointer<std::int32_t>(rows),
                                pointer<std::uint32_t>(out), nullptr);
      },
      py::arg("transposed"), py::arg("in_"), py::arg("rows"), py::arg("out"));
  module.def("try_multiply_add", &try_multiply_add, py::arg("a"), py::arg("b"), py::arg("c"), py::arg("d"),
             py::arg("dtype"));
  module.def(
      "try_warp_functions",
      [](const py::array& in, const py::array& out) {
        cuda::try_warp_functions(pointer<std::int32_t>(in), pointer<std::int32_t>(out), nullptr);
      },
      py::arg("in_"), py::arg("out"));
  module.def("try_sums", &try_sums, py::arg("in_"), py::arg("of_warp"), py::arg("of_block"));
  module.def(
      "try_shared_memory",
      [](const py::array& in, const py::array& out) {
        cuda::try_shared_memory(pointer<std::uint32_t>(in), pointer<std::uint32_t>(out),
                                bytes_of(in) / cuda::kTriedSharedBytes, nullptr);
      },
      py::arg("in_"), py::arg("out"));
  module.def(
      "try_atomics",
      [](const py::array& in, const py::array& out) {
        cuda::try_atomics(pointer<std::int32_t>(in), pointer<std::int32_t>(out), rows_of(in), nullptr);
      },
      py::arg("in_"), py::arg("out"));
  bind_map(module, "try_exp2", &cuda::try_exp2);
  bind_map(module, "try_to_bf16", &cuda::try_to_bf16);
  bind_map(module, "try_to_half", &cuda::try_to_half);
  bind_map(module, "try_half_to_float", &cuda::try_half_to_float);
  bind_map(module, "try_pack_pair", &cuda::try_pack_pair);
  bind_map(module, "try_subtract_pairs", &cuda::try_subtract_pairs);
  bind_map(module, "try_multiply_pairs", &cuda::try_multiply_pairs);
  bind_map(module, "try_byte_perm", &cuda::try_byte_perm);
}

}  // namespace

void bind_conformance(py::module_& module) {
  bind_wrappers(module);
  module.attr("peak_multiply_adds") = cuda::kPeakWarps * cuda::kPeakProducts * 16 * 8 * 16;  // a block in a round
  module.attr("peak_threads") = cuda::kPeakWarps * cuda::kWarpThreads;
  module.def(
      "copy_chunks",
      [](const py::array& in, const py::array& out) {
        cuda::copy_chunks(elements<uint4>(in), elements<uint4>(out), static_cast<std::size_t>(in.nbytes()) / 16,
                          nullptr);
      },
      py::arg("in_"), py::arg("out"));
  module.def(
      "multiply_in_registers",
      [](const py::array& out, int rounds) {
        cuda::multiply_in_registers(pointer<float>(out), rows_of(out), rounds, nullptr);
      },
      py::arg("out"), py::arg("rounds"));
}

}  // namespace llmsrv::emulation
