#include "cuda/plugin/launches.h"

#include <stdexcept>
#include <type_traits>

#include "cuda/launch/attention.h"
#include "cuda/launch/attention_hopper.h"
#include "cuda/launch/linear.h"
#include "cuda/launch/rows.h"
#include "cuda/plugin/arguments.h"
#include "cuda/plugin/draws.h"
#include "cuda/plugin/last_error.h"

namespace llmsrv::cuda {
namespace {

using device::Element;

// Attention writes rows back to back, and turns them so.
template <typename T>
T* pointer_without_gaps(const device::Rows& rows) {
  if (rows.rows > 1 && rows.stride != rows.cols) throw std::invalid_argument("rows with gaps between them");
  return pointer<T>(rows);
}

template <typename T>
KvLayout<T> kv_layout(const device::KvBlocks& cache) {
  int shift = 0;
  while (1 << shift < cache.block_size) ++shift;
  if (1 << shift != cache.block_size) throw std::invalid_argument("blocks whose size is no power of two");
  return {static_cast<T*>(cache.data), cache.kv_heads, cache.block_size, shift, cache.head_dim};
}

void run(const device::Embed& launch, Stream stream) {
  EmbedParams params;
  params.table = static_cast<const unsigned char*>(launch.table.panels);
  params.panel_bytes = launch.table.panel_bytes;
  params.ids = launch.ids;
  params.drawn = launch.drawn;
  params.out = pointer<float>(launch.out);
  params.out_stride = launch.out.stride;
  params.tokens = launch.out.rows;
  params.cols = launch.out.cols;
  params.scale = launch.scale;
  embed(params, packed_format(launch.table.packing), stream);
}

template <typename Out>
void run_norm(const device::RmsNorm& launch, Stream stream) {
  RmsNormParams<float, Out> params;
  params.in = pointer<float>(launch.in);
  params.in_stride = launch.in.stride;
  params.weight = launch.weight;
  params.out = pointer<Out>(launch.out);
  params.out_stride = launch.out.stride;
  params.rows = launch.in.rows;
  params.cols = launch.in.cols;
  params.eps = launch.eps;
  rms_norm(params, launch.adds != 0 ? NormUse::kAddAfter : NormUse::kPlain, stream);
}
void run(const device::RmsNorm& launch, Stream stream) {
  launch.out.type == Element::kBf16 ? run_norm<Bf16>(launch, stream) : run_norm<float>(launch, stream);
}

template <typename T>
void run_gated_mul(const device::GatedMul& launch, Stream stream) {
  GatedMulParams<T, T> params;
  params.in = pointer<T>(launch.in);
  params.in_stride = launch.in.stride;
  params.out = pointer<T>(launch.out);
  params.out_stride = launch.out.stride;
  params.rows = launch.out.rows;
  params.cols = launch.out.cols;
  gated_mul(params, launch.gate == device::Gate::kSilu ? Gate::kSilu : Gate::kGeluTanh, stream);
}
void run(const device::GatedMul& launch, Stream stream) {
  launch.out.type == Element::kBf16 ? run_gated_mul<Bf16>(launch, stream) : run_gated_mul<float>(launch, stream);
}

void run(const device::GatherRows& launch, Stream stream) {
  GatherRowsParams<float> params;
  params.table = pointer<float>(launch.in);
  params.table_stride = launch.in.stride;
  params.ids = launch.ids;
  params.out = pointer<float>(launch.out);
  params.out_stride = launch.out.stride;
  params.rows = launch.out.rows;
  params.cols = launch.out.cols;
  gather_rows(params, stream);
}

template <typename Out, typename In>
PackedLinearParams<Out, In> linear_params(const device::Linear& launch) {
  PackedLinearParams<Out, In> params;
  params.in = pointer<In>(launch.in);
  params.in_stride = launch.in.stride;
  params.weights = static_cast<const unsigned char*>(launch.weights.panels);
  params.panel_bytes = launch.weights.panel_bytes;
  params.bias = launch.bias;
  params.out = pointer<Out>(launch.out);
  params.out_stride = launch.out.stride;
  params.tokens = launch.in.rows;
  params.cols = launch.in.cols;
  params.outputs = launch.weights.rows;
  params.adds = launch.adds != 0;
  return params;
}
void run(const device::Linear& launch, Stream stream) {
  const PackedFormat format = packed_format(launch.weights.packing);
  if (launch.in.type == Element::kF32) return float_linear(linear_params<float, float>(launch), format, stream);
  if (launch.out.type == Element::kF32) return packed_linear(linear_params<float, Bf16>(launch), format, stream);
  packed_linear(linear_params<Bf16, Bf16>(launch), format, stream);
}

// Calls f with values of the types of the activations and of the cache; cuda/launch/attention.h has the pairs.
template <typename T, typename F>
void with_cache_type(Element cache, const F& f) {
  if (cache == Element::kF8) return f(T{}, Fp8{});
  if (cache == kElementOf<T>) return f(T{}, T{});
  if constexpr (!std::is_same_v<T, Half>) {
    if (cache == Element::kInt8) return f(T{}, Int8{});
  }
  if constexpr (std::is_same_v<T, float>) {
    if (cache == Element::kBf16) return f(T{}, Bf16{});
    if (cache == Element::kF16) return f(T{}, Half{});
  }
  throw std::invalid_argument("no kernel for this type of the KV cache beside these activations");
}
template <typename F>
void with_kv_types(Element activations, Element cache, const F& f) {
  if (activations == Element::kF32) return with_cache_type<float>(cache, f);
  if (activations == Element::kBf16) return with_cache_type<Bf16>(cache, f);
  if (activations == Element::kF16) return with_cache_type<Half>(cache, f);
  throw std::invalid_argument("no kernel for this type of activations");
}

template <typename T, typename Kv>
void run_rope(const device::RopeStoreKv& launch, Stream stream) {
  RopeStoreKvParams<T, Kv> params;
  params.qkv = pointer_without_gaps<T>(launch.qkv);
  params.query_norm = launch.query_norm;
  params.key_norm = launch.key_norm;
  params.eps = launch.eps;
  params.cos = launch.cos;
  params.sin = launch.sin;
  params.positions = launch.positions;
  params.slot_blocks = launch.slot_blocks;
  params.slot_offsets = launch.slot_offsets;
  params.cache = kv_layout<Kv>(launch.cache);
  params.rows = launch.qkv.rows;
  params.heads = launch.heads;
  rope_store_kv(params, stream);
}
void run(const device::RopeStoreKv& launch, Stream stream) {
  with_kv_types(launch.qkv.type, launch.cache.type,
                [&]<typename T, typename Kv>(T, Kv) { run_rope<T, Kv>(launch, stream); });
}

AttentionGrid attention_grid(const device::Attention& launch) {
  return {launch.range_count, launch.rows_max, launch.segments_max};
}

// Sums first, then maxima, then weights.
SegmentPartials segment_partials(const device::Attention& launch) {
  const auto count = static_cast<std::size_t>(launch.partial_count) * static_cast<std::size_t>(launch.heads);
  float* maxima = launch.partials + count * static_cast<std::size_t>(launch.cache.head_dim);
  return {launch.partials, maxima, maxima + count};
}

template <typename T, typename Kv>
void run_prefill(const AttentionParams<T, Kv>& params, const device::Attention& launch, Stream stream) {
  if constexpr (std::is_same_v<T, Bf16> && std::is_same_v<Kv, Bf16>) {
    if (launch.by_warp_groups != 0 && has_hopper_prefill(launch.cache.head_dim, launch.cache.block_size)) {
      return attend_prefill_hopper(params, launch.cache.blocks, attention_grid(launch), stream);
    }
  }
  attend_prefill(params, attention_grid(launch), stream);
}

template <typename T, typename Kv>
void run_attention(const device::Attention& launch, Stream stream) {
  static_assert(sizeof(device::Range) == sizeof(RangeOnDevice));
  AttentionParams<T, Kv> params;
  params.queries = pointer<T>(launch.queries);
  params.query_stride = launch.queries.stride;
  params.out = pointer_without_gaps<T>(launch.out);
  params.cache = kv_layout<Kv>(launch.cache);
  params.ranges = reinterpret_cast<const RangeOnDevice*>(launch.ranges);
  params.block_ids = launch.block_ids;
  params.heads = launch.heads;
  params.scale = launch.scale;
  params.window = launch.window;
  params.soft_cap = launch.soft_cap;
  params.has_soft_cap = launch.has_soft_cap != 0;
  if (launch.by_segments == 0) return run_prefill(params, launch, stream);
  attend_segments(params, attention_grid(launch), segment_partials(launch), stream);
}
void run(const device::Attention& launch, Stream stream) {
  with_kv_types(launch.queries.type, launch.cache.type,
                [&]<typename T, typename Kv>(T, Kv) { run_attention<T, Kv>(launch, stream); });
}

void run(const device::CompareProducts& launch, Stream stream) {
  compare_products(launch.blocks, launch.unequal, stream);
}
using cuda::run;  // beside those above

template <typename Launch>
device::Code guarded(const Launch* launch, device::Stream stream) {
  return caught([&] { run(*launch, static_cast<Stream>(stream)); });
}

}  // namespace

const device::LaunchTable& launch_table() {
  static constexpr device::LaunchTable kTable{
      .segment_keys = kSegmentKeys,
      .head_dims = kHeadDims.data(),
      .head_dim_count = static_cast<std::int32_t>(kHeadDims.size()),
      .vocab_max = kVocabMax,
      .top_logprobs_max = kTopLogprobsMax,
      .embed = &guarded<device::Embed>,
      .rms_norm = &guarded<device::RmsNorm>,
      .gated_mul = &guarded<device::GatedMul>,
      .gather_rows = &guarded<device::GatherRows>,
      .linear = &guarded<device::Linear>,
      .rope_store_kv = &guarded<device::RopeStoreKv>,
      .attention = &guarded<device::Attention>,
      .compare_products = &guarded<device::CompareProducts>,
      .sample = &guarded<device::Sample>,
      .logprobs = &guarded<device::Logprobs>,
  };
  return kTable;
}

}  // namespace llmsrv::cuda
