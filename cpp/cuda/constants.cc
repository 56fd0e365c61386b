#include "cpp/cuda/constants.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

namespace llmsrv {
namespace {

constexpr std::size_t kAlignment = 256;
// Two pieces of this size are in flight: the host fills one while the device reads the other.
constexpr std::size_t kPieceBytes = std::size_t{8} << 20;

std::size_t rounded_up(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Pinned memory through which pageable memory goes to the device.
class Uploader {
 public:
  Uploader(const Device& device, const DeviceStream& stream, std::size_t piece_bytes) : stream_(stream) {
    for (std::unique_ptr<Piece>& piece : pieces_) piece = std::make_unique<Piece>(device, piece_bytes);
  }

  void copy(std::byte* to, std::span<const std::byte> from) {
    while (!from.empty()) {
      Piece& piece = *pieces_[next_];
      next_ = (next_ + 1) % pieces_.size();
      const std::size_t bytes = std::min(from.size(), piece.memory.size());
      piece.copied.synchronize();
      std::memcpy(piece.memory.data(), from.data(), bytes);
      stream_.copy(to, piece.memory.data(), bytes);
      piece.copied.record(stream_);
      from = from.subspan(bytes);
      to += bytes;
    }
  }

 private:
  struct Piece {
    Piece(const Device& device, std::size_t bytes) : memory(device, bytes, MemoryPlace::kHost), copied(device) {}
    DeviceBuffer memory;
    DeviceEvent copied;
  };
  const DeviceStream& stream_;
  std::array<std::unique_ptr<Piece>, 2> pieces_;
  std::size_t next_ = 0;
};

}  // namespace

std::size_t Constants::bytes(std::span<const std::span<const std::byte>> constants) {
  std::size_t bytes = 0;
  for (const std::span<const std::byte> each : constants) bytes += rounded_up(each.size());
  return bytes;
}

Constants::Constants(const Device& device, std::span<const std::span<const std::byte>> constants,
                     const DeviceStream& stream)
    : memory_(device, bytes(constants), MemoryPlace::kDevice) {
  Uploader uploader(device, stream, std::min(kPieceBytes, std::max(memory_.size(), kAlignment)));
  std::size_t offset = 0;
  for (const std::span<const std::byte> each : constants) {
    offsets_[each.data()] = offset;
    uploader.copy(memory_.data() + offset, each);
    offset += rounded_up(each.size());
  }
  stream.synchronize();
}

const std::byte* Constants::find(const void* host) const {
  const auto found = offsets_.find(host);
  LLMSRV_CHECK(found != offsets_.end());
  return memory_.data() + found->second;
}

}  // namespace llmsrv
