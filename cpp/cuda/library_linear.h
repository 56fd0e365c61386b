// Linear layers of many rows by the maker's library (cuBLASLt): weights become bf16 rows in a workspace, a piece of a
// matrix at a time, and meet the inputs in a dense product. A row's bits then depend on how many rows there are, so
// this is for those who gave promise P3 up.
//
// Memory: the library's workspace and that of the weights, taken by reserve(). Thread rule: as the backend. What the
// library chooses for a shape is found when the shape comes first: no part of a capture, as a form of steps runs by
// itself before it is captured.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "cpp/cuda/device.h"
#include "cpp/ops/backend.h"

namespace llmsrv {

class LibraryLinear {
 public:
  // To write a matrix as rows and to read them moves 4 bytes per weight that our kernels do not: 1e-12 s on an H200. If
  // those multiply at a third of the library's 750 TFLOP/s, a row costs them 5e-15 s more per weight: 200 rows make up
  // for it. An estimate; `rows_min` in bench/device/run.sh's table "determinism" is the measured crossing.
  static constexpr int kRowsMin = 256;

  // Looks for the library. `rows_min`: from so many on.
  LibraryLinear(const Device& device, int rows_min);
  ~LibraryLinear();
  LibraryLinear(const LibraryLinear&) = delete;
  LibraryLinear& operator=(const LibraryLinear&) = delete;

  // For people: what it uses, or that it does not.
  std::string description() const {
    return found_ ? "cuBLASLt from " + std::to_string(rows_min_) + " rows on" : "cuBLASLt not found: own kernels";
  }

  // Memory of the device that reserve() takes; none where no step is large enough.
  std::size_t bytes(const StepLimits& limits) const { return workspace_bytes(limits) + unpacked_bytes(limits); }
  void reserve(const StepLimits& limits);

  // Whether this layer goes through the library. REQUIRES: reserve() was called
  bool takes(const device::Linear& linear) const;
  // REQUIRES: takes(linear)
  void run(const device::Linear& linear, const DeviceStream& stream) const;

 private:
  bool is_used(const StepLimits& limits) const { return found_ && limits.tokens >= rows_min_; }
  std::size_t workspace_bytes(const StepLimits& limits) const;
  std::size_t unpacked_bytes(const StepLimits& limits) const;

  const Device& device_;
  const int rows_min_;
  const bool found_;
  std::optional<DeviceBuffer> workspace_;
  std::optional<DeviceBuffer> unpacked_;
  device::Products products_ = nullptr;
};

}  // namespace llmsrv
