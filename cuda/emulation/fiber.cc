#include "cuda/emulation/fiber.h"

#include <sys/mman.h>

#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the registers that a call must keep on the old stack and takes those of the new one.
extern "C" void llmsrv_switch_stack(void** save, void* load);
asm(R"(
.text
.globl llmsrv_switch_stack
.hidden llmsrv_switch_stack
.type llmsrv_switch_stack,@function
llmsrv_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size llmsrv_switch_stack,.-llmsrv_switch_stack
)");

namespace llmsrv::emulation {

Fiber::Fiber(std::size_t stack_bytes) : stack_bytes_(stack_bytes) {
  void* memory = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  stack_ = static_cast<char*>(memory);
}

Fiber::~Fiber() {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(stack_, stack_bytes_);  // what the system places here next knows nothing of our frames
#endif
  munmap(stack_, stack_bytes_);
}

void Fiber::start(void (*body)()) {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(stack_, stack_bytes_);
  shadow_ = nullptr;
#endif
  constexpr int kSavedRegisters = 6;
  // One word below an aligned address, as after a call: the body may use aligned vector instructions.
  auto** top = reinterpret_cast<void**>(stack_ + stack_bytes_ - 16);
  *top = reinterpret_cast<void*>(body);
  for (int i = 1; i <= kSavedRegisters; ++i) top[-i] = nullptr;
  stack_pointer_ = top - kSavedRegisters;
}

void Fiber::enter() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&outside_shadow_, stack_, stack_bytes_);
#endif
  llmsrv_switch_stack(&outside_pointer_, stack_pointer_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(outside_shadow_, nullptr, nullptr);
#endif
}

void Fiber::leave([[maybe_unused]] bool for_good) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &shadow_, outside_bottom_, outside_bytes_);
#endif
  llmsrv_switch_stack(&stack_pointer_, outside_pointer_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(shadow_, nullptr, nullptr);
#endif
}

void Fiber::arrived() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &outside_bottom_, &outside_bytes_);
#endif
}

}  // namespace llmsrv::emulation
