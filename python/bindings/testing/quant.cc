#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <stdexcept>
#include <string>

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

void set_rows(PackedMatrix& matrix, int first, int count, const std::string& format, const py::bytes& source,
              int threads) {
  const std::string_view bytes = source;
  ThreadPool pool(threads);
  matrix.set_rows(first, count, source_format(format),
                  std::span(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()), pool);
}

}  // namespace

void register_quant(py::module_& m) {
  m.def("source_format_known", [](const std::string& name) { return source_format_from_name(name).has_value(); });
  m.def("source_block", [](const std::string& name) {
    return py::make_tuple(source_block_values(source_format(name)), source_block_bytes(source_format(name)));
  });
  m.def("unpack_row", &unpack, py::arg("format"), py::arg("source"), py::arg("cols"));

  m.def("native_format",
        [](const std::string& name) { return std::string(weight_format_name(native_format(source_format(name)))); });

  py::class_<PackedMatrix>(m, "PackedMatrix")
      .def(py::init([](const std::string& format, int rows, int cols) {
             const std::optional<WeightFormat> known = weight_format_from_name(format);
             if (!known) throw std::invalid_argument("unknown weight format '" + format + "'");
             return PackedMatrix(*known, rows, cols);
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
}

}  // namespace llmsrv::testing
