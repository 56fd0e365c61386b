// Persistent compute threads that run one function together, as a team.
// Thread rule: run() is called by one thread at a time, the owner; the owner works as member 0.
#pragma once

#include <memory>
#include <vector>

namespace llmsrv {

// A reference to a callable taking the member index. Allocates nothing; valid only during the call it is passed to.
class TeamFunction {
 public:
  template <typename F>
  TeamFunction(const F& function)  // NOLINT: implicit on purpose, so that run() takes a lambda
      : object_(&function), call_([](const void* object, int member) { (*static_cast<const F*>(object))(member); }) {}
  void operator()(int member) const { call_(object_, member); }

 private:
  const void* object_;
  void (*call_)(const void*, int);
};

class ThreadPool {
 public:
  // Starts `threads - 1` workers and waits for them. Throws std::system_error when the system has no more.
  // With `processors`, member m runs on processors[m] alone: the workers from now on, the owner once it asks for it.
  // REQUIRES: threads >= 1; processors is empty, or has one for each thread
  explicit ThreadPool(int threads, std::vector<int> processors = {});
  ~ThreadPool();

  // Puts the calling thread, the owner, on its processor for good. Does nothing without `processors`.
  void pin_owner() const { pin(0); }

  int size() const { return threads_; }

  // Calls work(0) ... work(size() - 1), each on its own member, and returns when all are done.
  // What the members wrote is visible to the owner afterwards. `work` must not throw and must not call run().
  void run(TeamFunction work);

  // The half-open share [begin, end) of `count` items that belongs to `member`; static, so that the split never
  // depends on timing.
  struct Range {
    int begin;
    int end;
  };
  Range share(int count, int member) const {
    return {static_cast<int>(static_cast<long>(count) * member / threads_),
            static_cast<int>(static_cast<long>(count) * (member + 1) / threads_)};
  }

 private:
  struct State;
  void pin(int member) const;

  int threads_;
  std::vector<int> processors_;
  std::unique_ptr<State> state_;
};

}  // namespace llmsrv
