#include "cuda/emulation/hopper.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include "cuda/emulation/race.h"
#include "cuda/emulation/runtime.h"

namespace llmsrv::emulation {
namespace {

constexpr std::uint32_t kSharedStart = 1024 + 128;
constexpr int kDepth = 16;
constexpr unsigned char kUnknown = 0xff;  // NaN
constexpr std::uint32_t kSwizzleBytes = 128;
constexpr std::uint32_t kPatternBytes = 1024;
constexpr unsigned kBoxMax = 256;

struct Barrier {
  unsigned arrivals = 0;  // of a phase
  unsigned missing = 0;
  std::int64_t bytes = 0;  // expected and not landed; below zero while bytes land before they are expected
  std::uint64_t phase = 0;
  unsigned initializer = 0;
  bool shown = false;
};

struct BoxCopy {
  void* to;
  TileMap map;
  int col;
  int row;
  const std::uint64_t* barrier;
  Location location;
};

struct StartedProduct {
  Product product;
  bool done = false;
};

// What one thread has started.
struct ThreadState {
  std::vector<std::pair<void*, uint4>> hidden_stores;  // since the last fence
  std::vector<StartedProduct> open;                    // since the last commit
  std::deque<std::vector<StartedProduct>> groups;      // committed and not waited for
  std::map<float*, std::vector<float>> sums;           // of products under way: what their registers hold in truth
  bool fenced = false;                                 // since registers were last free to be touched
  unsigned started = 0;
};

struct State {
  std::map<const void*, Barrier> barriers;
  std::vector<BoxCopy> copies;
  std::vector<ThreadState> threads;
};
thread_local State state;

ThreadState& self() { return state.threads[context->current->linear]; }

// What an instruction finds at an address of shared memory.
unsigned char* memory_at(std::uint32_t address, std::size_t bytes, const Location& location) {
  const std::size_t offset = address - kSharedStart;
  if (address < kSharedStart || offset + bytes > context->shared_bytes) {
    fail("address " + std::to_string(address) + " is outside of shared memory", location);
  }
  return context->shared + offset;
}

// Swizzle<3, 4, 3>: bits 4 to 6 of an address are changed by bits 7 to 9.
std::uint32_t swizzled(std::uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

Barrier& barrier_at(const std::uint64_t* barrier, const Location& location) {
  const auto found = state.barriers.find(barrier);
  if (found == state.barriers.end()) fail("a barrier is used before it is initialized", location);
  return found->second;
}

void end_phase_when_complete(const std::uint64_t* at, Barrier& barrier) {
  if (barrier.missing != 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.missing = barrier.arrivals;
  wake(at);
}

void land(const BoxCopy& copy) {
  const TileMap& map = copy.map;
  const std::uint32_t to = shared_address(copy.to, copy.location);
  for (std::uint32_t y = 0; y < map.box_rows; ++y) {
    for (std::uint32_t x = 0; x < map.box_cols; ++x) {
      const std::int64_t row = static_cast<std::int64_t>(copy.row) + y;
      const std::int64_t col = static_cast<std::int64_t>(copy.col) + x;
      std::uint16_t value = 0;
      if (row >= 0 && col >= 0 && row < static_cast<std::int64_t>(map.rows) &&
          col < static_cast<std::int64_t>(map.cols)) {
        std::memcpy(&value, map.data + static_cast<std::uint64_t>(row) * map.row_bytes + 2 * col, sizeof value);
      }
      const std::uint32_t address = swizzled(to + y * kSwizzleBytes + x * 2);
      std::memcpy(memory_at(address, sizeof value, copy.location), &value, sizeof value);
    }
  }
  Barrier& barrier = barrier_at(copy.barrier, copy.location);
  barrier.bytes -= std::int64_t{map.box_rows} * map.box_cols * 2;
  end_phase_when_complete(copy.barrier, barrier);
}

// The fields of a matrix descriptor, in bytes.
struct Descriptor {
  explicit Descriptor(std::uint64_t bits) : bits(bits) {}
  std::uint32_t field(int first_bit) const { return static_cast<std::uint32_t>(bits >> first_bit & 0x3fff) << 4; }
  std::uint32_t start() const { return field(0); }
  std::uint32_t leading() const { return field(16); }
  std::uint32_t stride() const { return field(32); }
  unsigned base_offset() const { return bits >> 49 & 7; }
  unsigned swizzle() const { return static_cast<unsigned>(bits >> 62); }
  std::uint64_t bits;
};

// The address of element (k, col) of b. With columns across: ((8, 8, m), (8, k)) : ((1, 8, leading), (64, stride));
// with the depth across: ((8, m), (8, 2)) : ((64, stride), (1, 8)); then swizzled.
std::uint32_t address_of(const Descriptor& b, bool across, int k, int col) {
  const auto y = static_cast<std::uint32_t>(across ? k : col);
  const auto x = static_cast<std::uint32_t>(across ? col : k);
  constexpr std::uint32_t kWide = kSwizzleBytes / 2;
  const std::uint32_t beside = across ? x / kWide * b.leading() : 0;
  return swizzled(b.start() + beside + x % kWide * 2 + y / 8 * b.stride() + y % 8 * kSwizzleBytes);
}

float value_of(std::uint32_t bf16) { return std::bit_cast<float>(bf16 << 16); }

void multiply(const Product& product, float* sums, const Location& location) {
  unsigned arrived;
  std::uint32_t mine[6] = {product.a[0], product.a[1], product.a[2], product.a[3]};
  std::memcpy(mine + 4, &product.b, sizeof product.b);
  const Slot* slots = exchange(0xffffffffu, Collective::kMatrixMultiply, mine, sizeof mine, &arrived, location);
  if (arrived != 0xffffffffu) fail("a product lacks lanes", location);
  const int lane = static_cast<int>(context->current->lane);
  const Descriptor b(product.b);
  float left[2][kDepth];
  for (int half = 0; half < 2; ++half) {
    for (int k = 0; k < kDepth; ++k) {
      std::uint32_t words[6];
      std::memcpy(words, slots[lane / 4 * 4 + k % 8 / 2].bytes, sizeof words);
      if (std::memcmp(words + 4, mine + 4, sizeof product.b) != 0) fail("lanes name different matrices", location);
      left[half][k] = value_of(words[k / 8 * 2 + half] >> k % 2 * 16 & 0xffff);
    }
  }
  for (int block = 0; block < product.cols; block += 8) {
    for (int pair = 0; pair < 2; ++pair) {
      const int col = block + lane % 4 * 2 + pair;
      float sum[2] = {0.0f, 0.0f};
      for (int step = 0; step < kDepth; ++step) {
        const int k = options().products_sum_backwards ? kDepth - 1 - step : step;
        std::uint16_t right;
        std::memcpy(&right, memory_at(address_of(b, product.across, k, col), sizeof right, location), sizeof right);
        for (int half = 0; half < 2; ++half) sum[half] += left[half][k] * value_of(right);
      }
      for (int half = 0; half < 2; ++half) {
        float& d = sums[block / 2 + half * 2 + pair];
        d = product.add ? d + sum[half] : sum[half];
      }
    }
  }
}

// Until a product is done nobody knows what its registers hold.
void hide_sums(ThreadState& thread, const Product& product) {
  const auto count = static_cast<std::size_t>(product.cols / 2);
  auto [sums, hidden_now] = thread.sums.try_emplace(product.d);
  if (!hidden_now) return;
  sums->second.assign(product.d, product.d + count);
  std::memset(product.d, kUnknown, count * sizeof(float));
}

bool same_sums_in(const std::vector<StartedProduct>& products, const float* d) {
  return std::any_of(products.begin(), products.end(),
                     [d](const StartedProduct& each) { return !each.done && each.product.d == d; });
}

void show_finished_sums(ThreadState& thread) {
  std::erase_if(thread.sums, [&](const auto& entry) {
    float* const d = entry.first;
    if (same_sums_in(thread.open, d)) return false;
    for (const auto& group : thread.groups) {
      if (same_sums_in(group, d)) return false;
    }
    std::copy(entry.second.begin(), entry.second.end(), d);
    return true;
  });
}

// The same for all lanes of a warp, which must meet in a product.
bool product_happens_now(const ThreadState& thread) {
  if (!thread.sums.empty()) return false;  // products of a warp follow each other
  if (options().order != Order::kShuffled) return options().order == Order::kReverse;
  const std::uint64_t key = options().seed * 1000003 + context->current->warp * 4099 + thread.started;
  return ((key * 0x9e3779b97f4a7c15ull) >> 60 & 1) != 0;
}

void check_descriptor(const Product& product, const Location& location) {
  const Descriptor b(product.b);
  if (b.swizzle() != 1) fail("the emulator knows matrices swizzled by 128 bytes only", location);
  if (b.base_offset() != 0) fail("the emulator knows patterns that start at multiples of 1024 bytes only", location);
  if (b.stride() % kPatternBytes != 0 || (product.cols > 64 && product.across && b.leading() % kPatternBytes != 0)) {
    fail("the swizzle pattern of a matrix does not start at a multiple of 1024 bytes", location);
  }
  if (product.across ? b.start() % kPatternBytes != 0 : b.start() % kPatternBytes >= kSwizzleBytes) {
    fail("a matrix does not start at the first row of a pattern", location);
  }
}

}  // namespace

std::uint32_t shared_address(const void* memory, const Location& location) {
  const auto offset = static_cast<const unsigned char*>(memory) - context->shared;
  if (offset < 0 || offset > static_cast<std::ptrdiff_t>(context->shared_bytes)) {
    fail("not an address of dynamic shared memory", location);
  }
  return kSharedStart + static_cast<std::uint32_t>(offset);
}

void init_barrier(const std::uint64_t* barrier, unsigned arrivals, const Location& location) {
  if (shared_address(barrier, location) % 8 != 0) fail("a barrier is not aligned", location);
  if (arrivals == 0) fail("a barrier without arrivals", location);
  race_access(barrier, sizeof *barrier, {true, false, __builtin_return_address(0)});
  state.barriers[barrier] = {arrivals, arrivals, 0, 0, context->current->linear, false};
}

void show_barriers(const Location& location) {
  if (left_out(location)) return;
  for (auto& [at, barrier] : state.barriers) barrier.shown |= barrier.initializer == context->current->linear;
}

void arrive(const std::uint64_t* at, unsigned expected_bytes, const Location& location) {
  Barrier& barrier = barrier_at(at, location);
  race_access(at, sizeof *at, {true, true, __builtin_return_address(0)});
  if (barrier.missing == 0) fail("more arrivals than a phase has", location);
  barrier.bytes += expected_bytes;
  --barrier.missing;
  end_phase_when_complete(at, barrier);
}

void wait_for_phase(const std::uint64_t* at, unsigned parity, const Location& location) {
  const Barrier& barrier = barrier_at(at, location);
  race_access(at, sizeof *at, {true, true, __builtin_return_address(0)});
  if (left_out(location)) return;
  while ((barrier.phase & 1) == parity) wait_for_event(at, location);
}

TileMap make_tile_map(const TileMap& wanted) {
  const auto refuse = [](const char* why) { throw Error(std::string("tile map: ") + why); };
  if (reinterpret_cast<std::uintptr_t>(wanted.data) % 16 != 0) refuse("the matrix is not aligned to 16 bytes");
  if (wanted.row_bytes % 16 != 0 || wanted.row_bytes >= std::uint64_t{1} << 40) refuse("impossible row pitch");
  if (wanted.rows == 0 || wanted.cols == 0 || wanted.rows > std::uint64_t{1} << 32) refuse("impossible size");
  if (wanted.box_rows == 0 || wanted.box_rows > kBoxMax || wanted.box_cols == 0) refuse("impossible box");
  if (wanted.box_cols * 2 > kSwizzleBytes || wanted.box_cols % 8 != 0) refuse("the box is wider than the swizzle");
  return wanted;
}

void copy_box(void* to, const TileMap& map, int col, int row, const std::uint64_t* barrier, const Location& location) {
  if (!barrier_at(barrier, location).shown) fail("a copy may not see its barrier yet", location);
  if (shared_address(to, location) % kPatternBytes != 0)
    fail("a swizzled box must start at a multiple of 1024", location);
  const std::size_t bytes = map.box_rows * std::size_t{kSwizzleBytes};
  memory_at(shared_address(to, location), bytes, location);
  const BoxCopy copy{to, map, col, row, barrier, location};
  if (happens_now()) return land(copy);
  std::memset(to, kUnknown, bytes);
  state.copies.push_back(copy);
}

void store_for_products(void* to, const uint4& value, const Location& location) {
  if (shared_address(to, location) % 16 != 0) fail("a store of 16 bytes is not aligned", location);
  race_access(to, 16, {true, false, __builtin_return_address(0)});
  self().hidden_stores.emplace_back(to, value);
}

void fence_async_proxy(const Location& location) {
  if (left_out(location)) return;
  for (const auto& [to, value] : std::exchange(self().hidden_stores, {})) std::memcpy(to, &value, sizeof value);
}

void fence_products(const Location& location) {
  if (!left_out(location)) self().fenced = true;
}

void start_product(const Product& product, const Location& location) {
  ++device_counts().warp_group_products;
  ThreadState& thread = self();
  if (!thread.fenced) fail("a product may read its registers before they are written", location);
  check_descriptor(product, location);
  StartedProduct started{product};
  started.done = product_happens_now(thread);
  ++thread.started;
  if (started.done) {
    multiply(product, product.d, location);
  } else {
    hide_sums(thread, product);
  }
  thread.open.push_back(started);
}

void commit_products() {
  ThreadState& thread = self();
  thread.groups.push_back(std::exchange(thread.open, {}));
}

void wait_for_products(unsigned groups_left, const Location& location) {
  if (left_out(location)) return;
  ThreadState& thread = self();
  for (; thread.groups.size() > groups_left; thread.groups.pop_front()) {
    for (StartedProduct& started : thread.groups.front()) {
      if (!started.done) multiply(started.product, thread.sums.at(started.product.d).data(), location);
      started.done = true;
    }
  }
  show_finished_sums(thread);
  thread.fenced = false;
  // The whole warp waits: nobody goes on while another lane's products still read.
  unsigned arrived;
  const char nothing = 0;
  exchange(0xffffffffu, Collective::kMatrixMultiply, &nothing, sizeof nothing, &arrived, location);
}

void hopper_block_begins(unsigned threads) {
  state = {};
  state.threads.resize(threads);
}

void hopper_block_ends() {
  if (!state.copies.empty()) throw Error("a copy is under way when its block ends");
  for (const ThreadState& thread : state.threads) {
    if (!thread.sums.empty()) throw Error("a product is under way when its block ends");
    if (!thread.hidden_stores.empty()) throw Error("stores are not fenced when their block ends");
  }
  state = {};
}

// The one that was started last: copies need not land in the order in which they were started.
bool land_late_copy() {
  if (state.copies.empty()) return false;
  const BoxCopy copy = state.copies.back();
  state.copies.pop_back();
  land(copy);
  return true;
}

}  // namespace llmsrv::emulation
