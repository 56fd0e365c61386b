// A stand-in for cuBLASLt, for tests: its C interface, sums on the CPU. The algorithm that it proposes shows in the
// bits of a result: sums ascend for many columns of b and descend for few, and start in the middle where they may be
// split. A product on a stream is handed to who owns the emulated streams (stand_in_queue()); without one it is done at
// once.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

#include "cpp/base/float16.h"

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalid = 7;
constexpr int kNotSupported = 15;
constexpr int kFloat32 = 0;
constexpr int kBfloat16 = 14;
constexpr int kFloat8 = 28;
constexpr std::uint64_t kManyColumns = 64;

enum class Order : std::uint64_t { kAscending = 1, kDescending = 2, kSplit = 3 };

struct Operation {
  std::int32_t transposes[2] = {0, 0};
};
struct Layout {
  int type;
  std::uint64_t rows, cols;
  std::int64_t stride;
};
struct Preference {
  std::uint64_t workspace_bytes = 0;
  std::uint32_t reductions = 7;
  std::uint32_t alignments[4] = {256, 256, 256, 256};
};
struct Algorithm {
  std::uint64_t data[8];
};
struct Result {
  Algorithm algorithm;
  std::size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

int searches = 0;
int products = 0;
void (*queue)(void* stream, std::function<void()> work) = nullptr;

float e4m3_to_float(std::uint8_t bits) {
  if ((bits & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const std::uint32_t places = static_cast<std::uint32_t>(bits & 0x80) << 24 | static_cast<std::uint32_t>(bits & 0x7f)
                                                                                   << 20;
  return std::bit_cast<float>(places) * 0x1p120f;  // exponents count from 2^-7 there, from 2^-127 here
}

// Column by column.
float element(const void* matrix, const Layout& layout, std::uint64_t row, std::uint64_t col) {
  const std::uint64_t at = row + col * static_cast<std::uint64_t>(layout.stride);
  if (layout.type == kFloat32) return static_cast<const float*>(matrix)[at];
  if (layout.type == kFloat8) return e4m3_to_float(static_cast<const std::uint8_t*>(matrix)[at]);
  return llmsrv::bf16_to_float(static_cast<const std::uint16_t*>(matrix)[at]);
}
void set_element(void* matrix, const Layout& layout, std::uint64_t row, std::uint64_t col, float value) {
  const std::uint64_t at = row + col * static_cast<std::uint64_t>(layout.stride);
  if (layout.type == kFloat32) {
    static_cast<float*>(matrix)[at] = value;
  } else {
    static_cast<std::uint16_t*>(matrix)[at] = llmsrv::float_to_bf16(value);
  }
}

// Where the sum stands after `done` of `count` products.
std::uint64_t place(Order order, std::uint64_t done, std::uint64_t count) {
  if (order == Order::kAscending) return done;
  if (order == Order::kDescending) return count - 1 - done;
  return (done + count / 2) % count;
}

template <typename T>
int take(T& to, const void* value, std::size_t bytes) {
  if (bytes != sizeof(T)) return kInvalid;
  std::memcpy(&to, value, bytes);
  return kSuccess;
}

// One product with all it was given: layouts may change before its turn comes.
struct Product {
  float alpha;
  const void* a;
  Layout a_layout;
  const void* b;
  Layout b_layout;
  float beta;
  const void* c;
  Layout c_layout;
  void* d;
  Layout d_layout;
  Order order;

  void operator()() const {
    const std::uint64_t inner = a_layout.rows;
    for (std::uint64_t col = 0; col < d_layout.cols; ++col) {
      for (std::uint64_t row = 0; row < d_layout.rows; ++row) {
        float sum = 0.0f;
        for (std::uint64_t i = 0; i < inner; ++i) {
          const std::uint64_t k = place(order, i, inner);
          sum += element(a, a_layout, k, row) * element(b, b_layout, k, col);
        }
        sum *= alpha;
        if (beta != 0.0f) sum += beta * element(c, c_layout, row, col);
        set_element(d, d_layout, row, col, sum);
      }
    }
  }
};

}  // namespace

extern "C" {

int stand_in_searches() { return searches; }
int stand_in_products() { return products; }
void stand_in_queue(void (*with)(void* stream, std::function<void()> work)) { queue = with; }
std::size_t cublasLtGetVersion() { return 130000; }
int cublasLtCreate(int** handle) {
  *handle = new int(1);
  return kSuccess;
}
int cublasLtDestroy(int* handle) {
  delete handle;
  return kSuccess;
}
int cublasLtMatmulDescCreate(Operation** operation, int compute, int scale_type) {
  if (compute != 68 || scale_type != kFloat32) return kNotSupported;
  *operation = new Operation;
  return kSuccess;
}
int cublasLtMatmulDescDestroy(Operation* operation) {
  delete operation;
  return kSuccess;
}
int cublasLtMatmulDescSetAttribute(Operation* operation, int attribute, const void* value, std::size_t bytes) {
  if (attribute != 3 && attribute != 4) return kInvalid;
  return take(operation->transposes[attribute - 3], value, bytes);
}
int cublasLtMatrixLayoutCreate(Layout** layout, int type, std::uint64_t rows, std::uint64_t cols, std::int64_t stride) {
  if (type != kFloat32 && type != kBfloat16 && type != kFloat8) return kInvalid;
  *layout = new Layout{type, rows, cols, stride};
  return kSuccess;
}
int cublasLtMatrixLayoutDestroy(Layout* layout) {
  delete layout;
  return kSuccess;
}
int cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value, std::size_t bytes) {
  if (attribute == 2) return take(layout->rows, value, bytes);
  if (attribute == 3) return take(layout->cols, value, bytes);
  if (attribute == 4) return take(layout->stride, value, bytes);
  return kInvalid;
}
int cublasLtMatmulPreferenceCreate(Preference** preference) {
  *preference = new Preference;
  return kSuccess;
}
int cublasLtMatmulPreferenceDestroy(Preference* preference) {
  delete preference;
  return kSuccess;
}
int cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* value, std::size_t bytes) {
  if (attribute == 1) return take(preference->workspace_bytes, value, bytes);
  if (attribute == 3) return take(preference->reductions, value, bytes);
  if (attribute >= 5 && attribute <= 8) return take(preference->alignments[attribute - 5], value, bytes);
  return kInvalid;
}

int cublasLtMatmulAlgoGetHeuristic(int*, Operation*, Layout* a, Layout* b, Layout*, Layout* d, Preference* preference,
                                   int, Result* results, int* found) {
  ++searches;
  *found = 0;
  if (a->type != b->type || d->type == kFloat8) return kNotSupported;
  if (a->type == kFloat8 && (a->rows % 16 != 0 || a->cols % 16 != 0)) return kNotSupported;
  for (const std::uint32_t alignment : preference->alignments) {
    if (alignment > 16) return kNotSupported;
  }
  const bool splits = preference->reductions != 0 && b->cols > 1 && b->cols < kManyColumns;
  const Order order = splits ? Order::kSplit : b->cols >= kManyColumns ? Order::kAscending : Order::kDescending;
  results[0] = {};
  results[0].algorithm.data[0] = static_cast<std::uint64_t>(order);
  *found = 1;
  return kSuccess;
}

int cublasLtMatmul(int*, Operation* operation, const float* alpha, const void* a, Layout* a_layout, const void* b,
                   Layout* b_layout, const float* beta, const void* c, Layout* c_layout, void* d, Layout* d_layout,
                   const Algorithm* algorithm, void*, std::size_t, void* stream) {
  if (operation->transposes[0] != 1 || operation->transposes[1] != 0) return kNotSupported;
  if (a_layout->rows != b_layout->rows || a_layout->cols != d_layout->rows || b_layout->cols != d_layout->cols) {
    return kInvalid;
  }
  ++products;
  const Product product{
      *alpha, a, *a_layout, b, *b_layout, *beta, c, *c_layout, d, *d_layout, static_cast<Order>(algorithm->data[0])};
  if (stream != nullptr && queue != nullptr) {
    queue(stream, product);
  } else {
    product();
  }
  return kSuccess;
}

}  // extern "C"
