#include "cuda/plugin/products.h"

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <type_traits>

#include "cuda/launch/linear.h"
#include "cuda/launch/rows.h"
#include "cuda/library/dense_products.h"
#include "cuda/plugin/arguments.h"
#include "cuda/plugin/last_error.h"

namespace llmsrv::cuda {
namespace {

using device::Code;

// Products of packed weights: they become bf16 rows in a workspace, as many at a time as it holds.
class UnpackedProducts {
 public:
  explicit UnpackedProducts(const device::ProductOptions& options)
      : options_(options),
        products_(
            open_cublaslt(),
            {.deterministic = false, .workspace = options.workspace, .workspace_bytes = options.workspace_bytes}) {}

  template <typename Out>
  void run(const device::Linear& linear, Stream stream) {
    const PackedFormat format = packed_format(linear.weights.packing);
    auto* const out = pointer<Out>(linear.out);
    if (linear.bias != nullptr) {
      spread_bias(SpreadBiasParams<Out>{linear.bias, out, linear.out.stride, linear.in.rows, linear.weights.rows,
                                        linear.adds != 0},
                  stream);
    }
    const int rows_at_once = rows_that_fit(linear.weights);
    for (int first = 0; first < linear.weights.rows; first += rows_at_once) {
      const int outputs = std::min(rows_at_once, linear.weights.rows - first);
      const auto* panels = static_cast<const unsigned char*>(linear.weights.panels) +
                           static_cast<std::size_t>(first / packed::kPanelRows) * linear.weights.panel_bytes;
      unpack({panels, linear.weights.panel_bytes, static_cast<Bf16*>(options_.unpacked), linear.weights.cols, outputs,
              linear.weights.cols},
             format, stream);
      multiply(linear, out + first, outputs, stream);
    }
  }

 private:
  // Whole panels, unless all of the matrix fits.
  int rows_that_fit(const device::Weights& weights) const {
    const std::size_t rows = options_.unpacked_bytes / (static_cast<std::size_t>(weights.cols) * sizeof(Bf16));
    if (rows >= static_cast<std::size_t>(weights.rows)) return weights.rows;
    if (rows < packed::kPanelRows) throw std::invalid_argument("a product by cuBLASLt has too little workspace");
    return static_cast<int>(rows) / packed::kPanelRows * packed::kPanelRows;
  }

  template <typename Out>
  void multiply(const device::Linear& linear, Out* out, int outputs, Stream stream) {
    const DenseShape shape{outputs, linear.weights.cols, std::is_same_v<Out, float>};
    products_.prepare(shape, options_.rows_max);
    products_.multiply({.shape = shape,
                        .in = pointer<Bf16>(linear.in),
                        .in_stride = linear.in.stride,
                        .weights = options_.unpacked,
                        .out = out,
                        .out_stride = linear.out.stride,
                        .rows = linear.in.rows,
                        .adds = linear.adds != 0 || linear.bias != nullptr},
                       stream);
  }

  const device::ProductOptions options_;
  DenseProducts products_;
};

Code open() {
  try {
    open_cublaslt();
    return Code::kOk;
  } catch (const LibraryError& error) {
    return failed(Code::kUnsupported, error.what());
  }
}

Code create(const device::ProductOptions* options, device::Products* products) {
  return caught([&] { *products = std::make_unique<UnpackedProducts>(*options).release(); });
}

Code destroy(device::Products products) {
  return caught([&] { delete static_cast<UnpackedProducts*>(products); });
}

Code linear(device::Products products, const device::Linear* linear, device::Stream stream) {
  return caught([&] {
    auto& unpacked = *static_cast<UnpackedProducts*>(products);
    if (linear->out.type == device::Element::kF32) return unpacked.run<float>(*linear, static_cast<Stream>(stream));
    unpacked.run<Bf16>(*linear, static_cast<Stream>(stream));
  });
}

}  // namespace

const device::ProductTable& product_table() {
  static constexpr device::ProductTable kTable{
      .open = &open, .create = &create, .destroy = &destroy, .linear = &linear};
  return kTable;
}

}  // namespace llmsrv::cuda
