#include "cpp/base/aligned_buffer.h"

#include <sys/mman.h>

#include <new>

#include "cpp/base/check.h"

namespace llmsrv {
namespace {
// Smaller buffers are not worth a huge page. Larger ones get one even below its 2 MiB: the system puts new mappings
// next to each other, so that buffers made one after the other and filled later share huge pages.
constexpr std::size_t kHugePageWorthBytes = std::size_t{64} << 10;
}  // namespace

// Pages come straight from the system: they are zero, touched by their first user, and go back whole.
AlignedBuffer::AlignedBuffer(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  if (bytes >= kHugePageWorthBytes) madvise(memory, bytes, MADV_HUGEPAGE);  // a hint; small pages work as well
  data_ = static_cast<std::byte*>(memory);
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

void AlignedBuffer::give_back() {
  if (data_ == nullptr) return;
  LLMSRV_CHECK(madvise(data_, bytes_, MADV_DONTNEED) == 0);
}

}  // namespace llmsrv
