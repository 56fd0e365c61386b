#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "cpp/base/float16.h"
#include "cpp/quant/matrix_stack.h"
#include "cpp/quant/packed_matrix.h"
#include "cpp/quant/source_format.h"
#include "python/bindings/testing/testing.h"

namespace py = pybind11;

namespace llmsrv::testing {
namespace {

SourceFormat source_format(const std::string& name) {
  const std::optional<SourceFormat> format = source_format_from_name(name);
  if (!format) throw std::invalid_argument("unknown source format '" + name + "'");
  return *format;
}

py::array_t<float> unpack(const std::string& format, const py::bytes& source, std::int64_t cols) {
  const std::string_view bytes = source;
  if (bytes.size() != source_row_bytes(source_format(format), cols)) throw std::invalid_argument("wrong size of row");
  py::array_t<float> out(cols);
  unpack_row(source_format(format), reinterpret_cast<const std::byte*>(bytes.data()), cols, out.mutable_data());
  return out;
}

WeightFormat weight_format(const std::string& name) {
  const std::optional<WeightFormat> format = weight_format_from_name(name);
  if (!format) throw std::invalid_argument("unknown weight format '" + name + "'");
  return *format;
}

void set_rows(PackedMatrix& matrix, int first, int count, const std::string& format, const py::bytes& source,
              int threads) {
  const std::string_view bytes = source;
  ThreadPool pool(threads);
  matrix.set_rows(first, count, source_format(format),
                  std::span(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()), pool);
}

// Rows of a stack; they lie in one of its parts.
void set_stack_rows(MatrixStack& stack, int first, int count, const std::string& format, const py::bytes& source) {
  const MatrixStack::Place place = stack.place_of(first);
  set_rows(*place.matrix, place.row, count, format, source, 1);
}

MatrixStack matrix_stack(const std::vector<std::pair<std::string, int>>& matrices, int cols) {
  std::vector<MatrixStack::Rows> rows;
  for (const auto& [format, count] : matrices) rows.push_back({count, weight_format(format)});
  return MatrixStack(rows, cols);
}

}  // namespace

void register_quant(py::module_& m) {
  m.def("source_format_known", [](const std::string& name) { return source_format_from_name(name).has_value(); });
  m.def("source_block", [](const std::string& name) {
    return py::make_tuple(source_block_values(source_format(name)), source_block_bytes(source_format(name)));
  });
  m.def("unpack_row", &unpack, py::arg("format"), py::arg("source"), py::arg("cols"));

  m.def("to_f16", [](const py::array_t<float, py::array::c_style | py::array::forcecast>& values) {  // the bits
    py::array_t<std::uint16_t> out(values.size());
    for (py::ssize_t i = 0; i < values.size(); ++i) out.mutable_data()[i] = float_to_f16(values.data()[i]);
    return out;
  });
  m.def("native_format",
        [](const std::string& name) { return std::string(weight_format_name(native_format(source_format(name)))); });

  py::class_<PackedMatrix>(m, "PackedMatrix")
      .def(py::init([](const std::string& format, int rows, int cols) {
             return PackedMatrix(weight_format(format), rows, cols);
           }),
           py::arg("format"), py::arg("rows"), py::arg("cols"))
      .def("set_rows", &set_rows, py::arg("first"), py::arg("count"), py::arg("format"), py::arg("source"),
           py::arg("threads") = 1)
      .def(
          "unpack_row",
          [](const PackedMatrix& matrix, int row) {
            py::array_t<float> out(matrix.cols());
            matrix.unpack_row(row, out.mutable_data());
            return out;
          },
          py::arg("row"))
      .def_property_readonly("rows", &PackedMatrix::rows)
      .def_property_readonly("cols", &PackedMatrix::cols)
      .def_property_readonly("nbytes", &PackedMatrix::bytes)
      .def("packed", [](const PackedMatrix& matrix) {  // a copy of the packed bytes
        return py::bytes(reinterpret_cast<const char*>(matrix.panel(0)), matrix.bytes());
      });

  py::class_<MatrixStack>(m, "MatrixStack")
      .def(py::init(&matrix_stack), py::arg("matrices"), py::arg("cols"))  // matrices: (format, rows)
      .def("set_rows", &set_stack_rows, py::arg("first"), py::arg("count"), py::arg("format"), py::arg("source"))
      .def_property_readonly("parts", [](const MatrixStack& stack) { return stack.parts().size(); });
}

}  // namespace llmsrv::testing
