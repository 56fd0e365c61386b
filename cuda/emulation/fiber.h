// A stack that can be left and come back to: one CUDA thread. x86-64 only.
#pragma once

#include <cstddef>

namespace llmsrv::emulation {

class Fiber {
 public:
  explicit Fiber(std::size_t stack_bytes);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next enter() starts `body`, which must never return: it ends with leave(). What ran before is forgotten.
  void start(void (*body)());
  // Runs the fiber until it leaves. Called by the scheduler, outside of any fiber.
  void enter();
  // Back to the scheduler. Called by the fiber itself; returns at the next enter(), unless `for_good`.
  void leave(bool for_good);
  // First thing in a body: tells AddressSanitizer that the switch is done.
  void arrived();

 private:
  char* stack_;
  std::size_t stack_bytes_;
  void* stack_pointer_ = nullptr;
  void* outside_pointer_ = nullptr;
  // AddressSanitizer's own notes of both stacks.
  void* shadow_ = nullptr;
  void* outside_shadow_ = nullptr;
  const void* outside_bottom_ = nullptr;
  std::size_t outside_bytes_ = 0;
};

}  // namespace llmsrv::emulation
