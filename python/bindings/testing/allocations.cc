// Counts allocations: replaces operator new in the testing module, or listens to AddressSanitizer, which replaces it
// itself.
#include <atomic>
#include <cstdlib>
#include <new>

#include "python/bindings/testing/testing.h"

#if defined(__SANITIZE_ADDRESS__)
// Of <sanitizer/allocator_interface.h>, which not every compiler package has.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, std::size_t),
                                                         void (*on_free)(const volatile void*));
#endif

namespace {
std::atomic<long> allocations{0};
}  // namespace

long llmsrv::testing::allocation_count() { return allocations.load(std::memory_order_relaxed); }

#if defined(__SANITIZE_ADDRESS__)

namespace {
[[maybe_unused]] const int listening = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, std::size_t) { allocations.fetch_add(1, std::memory_order_relaxed); },
    [](const volatile void*) {});
}  // namespace

#else

namespace {

void* counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  allocations.fetch_add(1, std::memory_order_relaxed);
  return memory;
}

std::size_t rounded(std::size_t bytes, std::size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(std::malloc(bytes == 0 ? 1 : bytes)); }
void* operator new[](std::size_t bytes) { return operator new(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto boundary = static_cast<std::size_t>(alignment);
  return counted(std::aligned_alloc(boundary, rounded(bytes, boundary)));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) { return operator new(bytes, alignment); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

#endif
