// attention_prefill.cuh for Hopper (sm_90a): the same steps for the same bits, on instructions that read keys and
// values from shared memory by themselves, with copies that need no thread.
//
// Work: a block takes kHopperRows packed rows of one key head and runs through all keys they see. Its first warp group
// is one warp that copies tiles of kTileKeys keys and values into a ring of kHopperStages, ahead of the others; each of
// the other warp groups has 64 of the rows, its queries in registers, a lane's two rows as in attention_prefill.cuh.
// While a group waits for its products or works on its softmax, the other's products run.
// Grid: (most row tiles, key heads, ranges).
//
// Copies: of a cache whose blocks lie anywhere, a box is what one block has of a tile, all of whose tokens of a head
// are neighbours: 8 to kTileKeys rows of kSwizzleCols columns, swizzled on their way, as products read them without
// bank conflicts. Plain bulk copies would move the same bytes, but cannot swizzle. A box brings the whole block: tokens
// that were never written may be NaN. Keys are masked after the product, but of values 0 * NaN is NaN: in a tile that
// holds such rows the copying warp waits for its copies and puts zeros there.
//
// Barriers: full[stage], an arrival of each copying lane and the bytes; empty[stage], an arrival of each other warp;
// landed, for the bytes of tiles that are mended before they are full.
//
// Shared memory: kHopperStages * 2 kTileKeys * head_dim * 2 bytes and the barriers: 64 KiB at head_dim 128.
// Bytes moved: per kHopperRows rows the keys and values they see, from L2 when other row tiles run beside it.
// Assumes: head_dim is 64 or 128; block_size a power of two, at least 8; the cache is aligned to 16 bytes.
#pragma once

#include "cuda/kernels/attention_prefill.cuh"
#include "cuda/kernels/device_hopper.cuh"

namespace llmsrv::cuda {

constexpr int kHopperGroups = 2;  // that multiply
constexpr int kHopperGroupRows = 64;
constexpr int kHopperRows = kHopperGroups * kHopperGroupRows;
constexpr int kHopperThreads = (1 + kHopperGroups) * kWarpGroupThreads;
constexpr int kHopperStages = 4;
constexpr int kHopperBoxRowsMin = 8;  // as many rows as the swizzle pattern has
constexpr int kRegistersAtLaunch = 168;
constexpr int kRegistersToCopy = 40;
constexpr int kRegistersToMultiply = 232;
static_assert(kRegistersToCopy + kHopperGroups * kRegistersToMultiply <= (1 + kHopperGroups) * kRegistersAtLaunch);

template <int kDim>
constexpr int kHopperTileBytes = kTileKeys * kDim * static_cast<int>(sizeof(Bf16));
template <int kDim>
constexpr std::size_t kHopperSharedBytes =
    kPatternBytes + kHopperStages * 2 * kHopperTileBytes<kDim> + (2 * kHopperStages + 1) * sizeof(std::uint64_t);

// The block's shared memory. Tiles: [kHopperStages][keys, values][kDim / kSwizzleCols][kTileKeys][kSwizzleCols].
template <int kDim>
struct HopperRing {
  static constexpr int kPartBytes = kTileKeys * kSwizzleCols * static_cast<int>(sizeof(Bf16));

  __device__ explicit HopperRing(unsigned char* shared)
      : tiles(shared + (kPatternBytes - shared_address(shared) % kPatternBytes) % kPatternBytes),
        barriers(reinterpret_cast<std::uint64_t*>(tiles + kHopperStages * 2 * kHopperTileBytes<kDim>)) {}

  __device__ unsigned char* keys(int index) const { return tiles + index % kHopperStages * 2 * kHopperTileBytes<kDim>; }
  __device__ unsigned char* values(int index) const { return keys(index) + kHopperTileBytes<kDim>; }
  __device__ std::uint64_t* full(int index) const { return barriers + index % kHopperStages; }
  __device__ std::uint64_t* empty(int index) const { return barriers + kHopperStages + index % kHopperStages; }
  __device__ std::uint64_t* landed() const { return barriers + 2 * kHopperStages; }
  // Of the phase that tile `index` fills.
  __device__ static unsigned parity(int index) { return static_cast<unsigned>(index / kHopperStages) & 1; }

  __device__ void init() const {
    for (int stage = 0; stage < kHopperStages; ++stage) {
      init_barrier(full(stage), kWarpThreads);
      init_barrier(empty(stage), kHopperGroups * kWarpGroupThreads / kWarpThreads);
    }
    init_barrier(landed(), kWarpThreads);
    show_barriers();
  }

  unsigned char* tiles;  // at a multiple of kPatternBytes
  std::uint64_t* barriers;
};

// The keys that a block's rows see, from a tile's first key on.
struct SpanOfKeys {
  int first;  // seen by some row
  int end;
  __device__ int begin() const { return first / kTileKeys * kTileKeys; }
  __device__ int tiles() const { return ceil_div(end - begin(), kTileKeys); }
  __device__ int first_key(int index) const { return begin() + index * kTileKeys; }
  __device__ bool holds(int key) const { return key >= first && key < end; }
  __device__ bool holds_all(int index) const { return holds(first_key(index)) && holds(first_key(index + 1) - 1); }
};

// What the copying warp does; its lanes divide a tile's boxes among themselves.
template <int kDim>
__device__ inline void copy_tiles(const AttentionParams<Bf16, Bf16>& p, const TileMap& cache, const TileOfRows& tile,
                                  const SpanOfKeys& span, const HopperRing<kDim>& ring) {
  const int lane = static_cast<int>(threadIdx.x);
  const int box_rows = min(p.cache.block_size, kTileKeys);
  const std::int32_t* blocks = p.block_ids + tile.range.first_block;
  const int rows_of_side = p.cache.kv_heads * p.cache.block_size;
  unsigned mended = 0;
  for (int index = 0; index < span.tiles(); ++index) {
    const int key = span.first_key(index) + lane * box_rows;
    const bool wanted = lane * box_rows < kTileKeys && key < span.end && key + box_rows > span.first;
    // Looked up before the wait, which is the longer one.
    const int block = wanted ? blocks[key >> p.cache.block_shift] : 0;
    const int row = block * 2 * rows_of_side + tile.kv_head * p.cache.block_size + (key & (p.cache.block_size - 1));
    if (index >= kHopperStages) wait_for_phase(ring.empty(index), HopperRing<kDim>::parity(index - kHopperStages));
    const bool whole = span.holds_all(index);
    std::uint64_t* const barrier = whole ? ring.full(index) : ring.landed();
    if (wanted) {
      arrive_expecting(barrier, static_cast<unsigned>(2 * box_rows * kDim) * sizeof(Bf16));
      LLMSRV_UNROLL
      for (int part = 0; part < kDim / kSwizzleCols; ++part) {
        const int to = part * HopperRing<kDim>::kPartBytes + lane * box_rows * 128;
        copy_box(ring.keys(index) + to, cache, part * kSwizzleCols, row, barrier);
        copy_box(ring.values(index) + to, cache, part * kSwizzleCols, row + rows_of_side, barrier);
      }
    } else {
      arrive(barrier);
    }
    if (whole) continue;
    wait_for_phase(ring.landed(), mended++ & 1);  // copies must not land on the zeros
    for (int chunk = lane; chunk < kTileKeys * kDim / 8; chunk += kWarpThreads) {
      if (!span.holds(span.first_key(index) + chunk / 8 % kTileKeys))
        store_for_products(ring.values(index) + chunk * 16, {0, 0, 0, 0});
    }
    fence_async_proxy();  // the products see the zeros
    arrive(ring.full(index));
  }
}

// A lane's queries of its two rows, as the first operand of products; zeros for rows that the tile does not hold.
template <int kDim>
__device__ inline void load_query_registers(const AttentionParams<Bf16, Bf16>& p, const TileOfRows& tile, int first_row,
                                            std::uint32_t (&queries)[kDim / 16][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  LLMSRV_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + lane / 4 + half * 8;
    const bool held = tile.holds(row);
    const auto token = static_cast<std::size_t>(held ? tile.range.first_row + tile.token(row) : 0);
    const Bf16* from = p.queries + token * static_cast<std::size_t>(p.query_stride) +
                       static_cast<std::size_t>(held ? tile.head(row) * kDim : 0) + lane % 4 * 2;
    LLMSRV_UNROLL
    for (int d = 0; d < kDim / 8; ++d) {
      queries[d / 2][d % 2 * 2 + half] = held ? *reinterpret_cast<const std::uint32_t*>(from + d * 8) : 0;
    }
  }
}

template <int kDim>
__device__ inline void start_scores(const std::uint32_t (&queries)[kDim / 16][4], const unsigned char* keys,
                                    float (&scores)[kTileKeys / 8][4]) {
  const std::uint64_t tile = rows_of_tile(keys);
  LLMSRV_UNROLL
  for (int d = 0; d < kDim / 16; ++d) {
    const int part = d * 16 / kSwizzleCols * HopperRing<kDim>::kPartBytes;
    start_product<false>(scores, queries[d], further_on(tile, part + d * 16 % kSwizzleCols * 2), d != 0);
  }
}

template <int kDim>
__device__ inline void start_sums(const std::uint32_t (&weights)[kTileKeys / 16][4], const unsigned char* values,
                                  RowState<kDim>& state) {
  const std::uint64_t tile = columns_of_tile(values, HopperRing<kDim>::kPartBytes);
  LLMSRV_UNROLL
  for (int k = 0; k < kTileKeys / 16; ++k) {
    start_product<true>(state.out, weights[k], further_on(tile, k * 16 * 128), true);
  }
}

// What the other warp groups do. first_row: of this warp.
template <int kDim>
__device__ inline void attend_tiles(const AttentionParams<Bf16, Bf16>& p, const TileOfRows& tile,
                                    const SpanOfKeys& span, const HopperRing<kDim>& ring, int first_row) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int tiles = span.tiles();
  int first[2];
  int last[2];
  tile.find_seen(first_row + lane / 4, first, last);
  std::uint32_t queries[kDim / 16][4];
  load_query_registers<kDim>(p, tile, first_row, queries);
  float scores[kTileKeys / 8][4] = {};
  std::uint32_t weights[kTileKeys / 16][4];
  RowState<kDim> total;
  RowState<kDim> part;
  total.clear();
  part.clear();

  wait_for_phase(ring.full(0), HopperRing<kDim>::parity(0));
  fence_products(scores);  // the queries are in their registers
  start_scores<kDim>(queries, ring.keys(0), scores);
  commit_products();
  wait_for_products<0>(scores);
  mask_scores(p, first, last, span.first_key(0), scores);
  float factors[2];
  soften(scores, part.max, part.sum, factors);
  pack_weights<Bf16>(scores, weights);
  for (int index = 1; index < tiles; ++index) {
    const int first_key = span.first_key(index);
    wait_for_phase(ring.full(index), HopperRing<kDim>::parity(index));
    fence_products(scores, part.out);  // scores, sums and weights are in their registers
    start_scores<kDim>(queries, ring.keys(index), scores);
    commit_products();
    start_sums<kDim>(weights, ring.values(index - 1), part);
    commit_products();
    wait_for_products<1>(scores);  // the sums may go on
    if (first_key % kSegmentKeys == 0) {
      wait_for_products<0>(part.out);  // the segment's last sums
      merge_segment(total, part);
    }
    mask_scores(p, first, last, first_key, scores);
    soften(scores, part.max, part.sum, factors);
    wait_for_products<0>(part.out);  // the sums, which also have read their values
    if (lane == 0) arrive(ring.empty(index - 1));
    // Mostly no row's maximum grows, and x * 1 = x.
    if (__ballot_sync(kAllLanes, factors[0] != 1.0f || factors[1] != 1.0f) != 0) shrink(part, factors);
    pack_weights<Bf16>(scores, weights);
  }
  fence_products(part.out);  // sums and weights are in their registers
  start_sums<kDim>(weights, ring.values(tiles - 1), part);
  commit_products();
  wait_for_products<0>(part.out);  // the last sums
  merge_segment(total, part);
  store_rows<kDim>(p, tile, first_row, 0, total);
}

template <int kDim>
__global__ void __launch_bounds__(kHopperThreads, 1)
    attend_prefill_hopper_kernel(const AttentionParams<Bf16, Bf16> p, const LLMSRV_GRID_CONSTANT TileMap cache) {
#if defined(LLMSRV_FOR_HOPPER)
  LLMSRV_DYNAMIC_SHARED(shared);
  const auto longest_first = static_cast<int>(gridDim.x - 1 - blockIdx.x);  // the last rows see most keys
  const TileOfRows tile{p.ranges[blockIdx.z], longest_first * kHopperRows, p.heads / p.cache.kv_heads,
                        static_cast<int>(blockIdx.y), p.window};
  if (!tile.holds(0)) return;
  const int last_row = min(kHopperRows, tile.range.row_count * tile.group - tile.first) - 1;
  const SpanOfKeys span{tile.first_key(0), tile.position(last_row) + 1};
  const HopperRing<kDim> ring(shared);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) ring.init();
  __syncthreads();  // the barriers are there
  if (thread < kWarpGroupThreads) {
    give_registers_back<kRegistersToCopy>();
    if (thread < kWarpThreads) copy_tiles<kDim>(p, cache, tile, span, ring);
  } else {
    take_registers<kRegistersToMultiply>();
    attend_tiles<kDim>(p, tile, span, ring, (thread - kWarpGroupThreads) / kWarpThreads * kTileRows);
  }
#endif
}

}  // namespace llmsrv::cuda
