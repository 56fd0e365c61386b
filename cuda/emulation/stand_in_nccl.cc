// A stand-in for NCCL, for tests: its C interface for ranks that are threads of one process, sums on the CPU.
//
// As the real one that does not block: a call returns at once, and its rank's state says "in progress" until every
// rank has made the same call; then the last one to come computes for all. Ranks whose calls do not fit, and those that
// another rank has left, find an error in their state.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cpp/base/float16.h"

namespace {

enum Result { kSuccess = 0, kInvalidArgument = 4, kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7 };
constexpr int kFloat32 = 7;
constexpr int kBfloat16 = 9;

struct Id {
  char bytes[128];
};
struct Config {
  std::size_t bytes;
  unsigned magic;
  unsigned version;
  int blocking;
};

struct Call {
  bool gathers;
  const void* in;
  void* out;
  std::size_t count;
  int type;
};

struct Group {
  explicit Group(std::size_t ranks) : joined(ranks), calls(ranks), finalized(ranks) {}
  std::size_t ranks() const { return calls.size(); }
  std::vector<bool> joined;
  std::vector<std::optional<Call>> calls;  // of the collective under way
  std::vector<bool> finalized;
  int result = kSuccess;
};

struct Communicator {
  std::shared_ptr<Group> group;
  std::size_t rank;
};

std::mutex mutex;  // of all below
std::uint64_t ids = 0;
std::map<std::uint64_t, std::weak_ptr<Group>> groups;
int communicators = 0;

bool all(const std::vector<bool>& ranks) {
  for (const bool there : ranks) {
    if (!there) return false;
  }
  return true;
}

int state_of(const Communicator& communicator) {
  const Group& group = *communicator.group;
  if (group.result != kSuccess) return group.result;
  const bool ends = group.finalized[communicator.rank] && !all(group.finalized);
  return !all(group.joined) || group.calls[communicator.rank] || ends ? kInProgress : kSuccess;
}

float element(const Call& call, const void* values, std::size_t at) {
  if (call.type == kFloat32) return static_cast<const float*>(values)[at];
  return llmsrv::bf16_to_float(static_cast<const std::uint16_t*>(values)[at]);
}
void set_element(const Call& call, std::size_t at, float value) {
  if (call.type == kFloat32) {
    static_cast<float*>(call.out)[at] = value;
  } else {
    static_cast<std::uint16_t*>(call.out)[at] = llmsrv::float_to_bf16(value);
  }
}

void compute(const std::vector<std::optional<Call>>& calls) {
  const std::size_t count = calls[0]->count;
  for (std::size_t at = 0; at < count; ++at) {
    float sum = 0.0f;
    for (std::size_t rank = 0; rank < calls.size(); ++rank) {
      const float value = element(*calls[rank], calls[rank]->in, at);
      sum += value;
      if (!calls[rank]->gathers) continue;
      for (const std::optional<Call>& call : calls) set_element(*call, rank * count + at, value);
    }
    for (const std::optional<Call>& call : calls) {
      if (!call->gathers) set_element(*call, at, sum);
    }
  }
}

int post(Communicator& communicator, const Call& call) {
  const std::lock_guard lock(mutex);
  if (call.type != kFloat32 && call.type != kBfloat16) return kInvalidArgument;
  if (const int state = state_of(communicator); state != kSuccess) return state == kInProgress ? kInvalidUsage : state;
  Group& group = *communicator.group;
  group.calls[communicator.rank] = call;
  for (const std::optional<Call>& other : group.calls) {
    if (!other) return kInProgress;
    if (other->gathers != call.gathers || other->count != call.count || other->type != call.type) {
      return group.result = kInvalidUsage;
    }
  }
  compute(group.calls);
  for (std::optional<Call>& done : group.calls) done.reset();
  return kSuccess;
}

int release(Communicator* communicator) {
  --communicators;
  delete communicator;
  return kSuccess;
}

}  // namespace

extern "C" {

int stand_in_communicators() {
  const std::lock_guard lock(mutex);
  return communicators;
}

int ncclGetVersion(int* version) {
  *version = 22809;
  return kSuccess;
}
const char* ncclGetErrorString(int result) {
  return result == kRemoteError ? "another rank is gone" : result == kInvalidUsage ? "invalid usage" : "refused";
}
int ncclGetUniqueId(Id* id) {
  const std::lock_guard lock(mutex);
  *id = {};
  ++ids;
  std::memcpy(id->bytes, &ids, sizeof ids);
  return kSuccess;
}

int ncclCommInitRankConfig(Communicator** communicator, int ranks, Id id, int rank, const Config* config) {
  if (config->magic != 0xcafebeef || config->bytes < sizeof(Config) || config->version < 21400 ||
      config->blocking != 0 || rank < 0 || rank >= ranks) {
    return kInvalidArgument;
  }
  const std::lock_guard lock(mutex);
  std::uint64_t number = 0;
  std::memcpy(&number, id.bytes, sizeof number);
  std::shared_ptr<Group> group = groups[number].lock();
  if (!group) groups[number] = group = std::make_shared<Group>(static_cast<std::size_t>(ranks));
  const auto place = static_cast<std::size_t>(rank);
  if (group->ranks() != static_cast<std::size_t>(ranks) || group->joined[place]) return kInvalidUsage;
  group->joined[place] = true;
  ++communicators;
  *communicator = new Communicator{group, place};
  return state_of(**communicator);
}
int ncclCommGetAsyncError(const Communicator* communicator, int* result) {
  const std::lock_guard lock(mutex);
  *result = state_of(*communicator);
  return kSuccess;
}
int ncclCommFinalize(Communicator* communicator) {
  const std::lock_guard lock(mutex);
  communicator->group->finalized[communicator->rank] = true;
  return state_of(*communicator);
}
int ncclCommDestroy(Communicator* communicator) {
  const std::lock_guard lock(mutex);
  const bool ended = communicator->group->finalized[communicator->rank] && state_of(*communicator) == kSuccess;
  return ended ? release(communicator) : kInvalidUsage;
}
int ncclCommAbort(Communicator* communicator) {
  const std::lock_guard lock(mutex);
  if (communicator->group->result == kSuccess) communicator->group->result = kRemoteError;
  return release(communicator);
}

int ncclAllReduce(const void* in, void* out, std::size_t count, int type, int operation, Communicator* communicator,
                  void*) {
  return operation == 0 ? post(*communicator, {false, in, out, count, type}) : kInvalidArgument;
}
int ncclAllGather(const void* in, void* out, std::size_t count, int type, Communicator* communicator, void*) {
  return post(*communicator, {true, in, out, count, type});
}

}  // extern "C"
