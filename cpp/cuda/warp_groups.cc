#include "cpp/cuda/warp_groups.h"

namespace llmsrv {
namespace {

// Of a multiprocessor: millions of sums in all, in less than a millisecond. Two ways to add that differ at all disagree
// on most of them.
constexpr int kComparedBlocks = 4;

}  // namespace

bool uses_warp_groups(const Device& device, const DeviceStream& stream, bool deterministic) {
  const device::Properties& properties = device.properties();
  if (properties.major != 9 || properties.minor != 0) return false;
  if (!deterministic) return true;
  const DeviceBuffer unequal(device, sizeof(std::int32_t), MemoryPlace::kDevice);
  const DeviceBuffer result(device, sizeof(std::int32_t), MemoryPlace::kHost);
  device.check(device.runtime().fill(unequal.data(), 0, unequal.size(), stream.handle()));
  const device::CompareProducts launch{kComparedBlocks * properties.multiprocessors,
                                       reinterpret_cast<std::int32_t*>(unequal.data())};
  device.check(device.launches().compare_products(&launch, stream.handle()));
  stream.copy(result.data(), unequal.data(), unequal.size());
  stream.synchronize();
  return *reinterpret_cast<const std::int32_t*>(result.data()) == 0;
}

}  // namespace llmsrv
