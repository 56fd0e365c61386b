#include "cpp/cuda/cuda_backend.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <vector>

#include "cpp/base/check.h"
#include "cpp/cuda/constants.h"
#include "cpp/cuda/device.h"
#include "cpp/cuda/device_sampler.h"
#include "cpp/cuda/lacking_kernels.h"
#include "cpp/cuda/library_linear.h"
#include "cpp/cuda/staging.h"
#include "cpp/cuda/step_clock.h"
#include "cpp/cuda/step_memory.h"
#include "cpp/cuda/warp_groups.h"

namespace llmsrv {
namespace {

using device::Element;

constexpr std::size_t kAlignment = 256;

std::size_t rounded_up(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

Element element_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return Element::kF32;
    case DType::kBf16:
      return Element::kBf16;
    case DType::kInt8:
      return Element::kInt8;
  }
  throw InternalError("unknown type of elements");
}

device::Packing packing_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return device::Packing::kF32;
    case WeightFormat::kBf16:
      return device::Packing::kBf16;
    case WeightFormat::kU4:
      return device::Packing::kU4;
    case WeightFormat::kU4Zero:
      return device::Packing::kU4Zero;
    case WeightFormat::kU5:
      return device::Packing::kU5;
    case WeightFormat::kU5Zero:
      return device::Packing::kU5Zero;
    case WeightFormat::kS8:
    case WeightFormat::kS8G64:
    case WeightFormat::kS8G128:
      return device::Packing::kS8;
    case WeightFormat::kU4K:
      return device::Packing::kU4K;
    case WeightFormat::kU5K:
      return device::Packing::kU5K;
    case WeightFormat::kU6K:
      return device::Packing::kU6K;
    case WeightFormat::kU4G64:
      return device::Packing::kU4G64;
    case WeightFormat::kU4G128:
      return device::Packing::kU4G128;
  }
  throw InternalError("unknown format of weights");
}

device::Rows rows_of(const TensorView& view) {
  return {view.data, element_of(view.dtype), view.rows, view.cols, view.row_stride};
}

device::Gate gate_of(GateKind kind) { return kind == GateKind::kSilu ? device::Gate::kSilu : device::Gate::kGeluTanh; }

// How many moves at the start go from neighbours to neighbours.
std::size_t run_length(std::span<const BlockMove> moves) {
  std::size_t length = 1;
  while (length < moves.size() && moves[length].from == moves[length - 1].from + 1 &&
         moves[length].to == moves[length - 1].to + 1) {
    ++length;
  }
  return length;
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(const PluginTable& table, const CudaOptions& options)
      : device_(table, options.device_index),
        launches_(device_.launches()),
        inner_dtype_(options.inner_dtype),
        has_graphs_(options.graphs),
        compute_(device_),
        copies_(device_),
        computed_(device_),
        moved_(device_),
        has_warp_groups_(uses_warp_groups(device_, compute_, options.deterministic)),
        graphs_(device_, compute_) {
    if (options.times_steps) clock_.emplace(device_);
    if (!options.deterministic && inner_dtype_ == DType::kBf16) {
      library_.emplace(device_, options.library_rows.value_or(LibraryLinear::kRowsMin));
    }
  }

  std::string description() const override {
    return std::string("cuda (") + device_.properties().name +
           (inner_dtype_ == DType::kF32 ? ", float32 arithmetic" : "") +
           (has_warp_groups_ ? ", prompts by warp groups" : "") +
           (library_ ? ", not deterministic, " + library_->description() : "") + ")";
  }

  std::vector<std::string> lacks(const KernelNeeds& needs) const override {
    return lacking_kernels(needs, inner_dtype_, launches_);
  }

  std::size_t workspace_bytes(const StepLimits& limits) const override {
    return rounded_up(ready_bytes(limits)) + rounded_up(partials_bytes(limits)) + rounded_up(picks_bytes(limits)) +
           rounded_up(StepMemory::bytes(limits)) + rounded_up(DeviceSampler::bytes(limits)) +
           (library_ ? library_->bytes(limits) : 0);
  }

  void reserve(const StepLimits& limits) override {
    device_.select();
    limits_ = limits;
    step_memory_.emplace(device_, limits, launches_.segment_keys);
    ready_.emplace(device_, ready_bytes(limits), MemoryPlace::kDevice);
    partials_.emplace(device_, partials_bytes(limits), MemoryPlace::kDevice);
    picks_.emplace(device_, picks_bytes(limits), MemoryPlace::kDevice);
    picks_staging_.emplace(device_, picks_bytes(limits));
    results_.emplace(device_, results_bytes(limits), MemoryPlace::kHost);
    sampler_.emplace(device_, limits);
    if (library_) library_->reserve(limits);
  }

  std::size_t kv_block_bytes(const HeadShape& shape, int block_size, DType dtype) const override {
    const std::size_t vectors = static_cast<std::size_t>(2 * shape.kv_heads) * static_cast<std::size_t>(block_size);
    const std::size_t scale_bytes = dtype == DType::kInt8 ? sizeof(float) : 0;  // of each vector
    return vectors * (static_cast<std::size_t>(shape.head_dim) * dtype_bytes(dtype) + scale_bytes);
  }

  DType inner_dtype() const override { return inner_dtype_; }

  std::unique_ptr<Buffer> allocate(std::size_t bytes, MemoryPlace place) override {
    device_.select();
    return std::make_unique<DeviceBuffer>(device_, bytes, place);
  }

  std::size_t held_bytes(std::span<const std::span<const std::byte>> constants) const override {
    return Constants::bytes(constants);
  }
  void hold(std::span<const std::span<const std::byte>> constants) override {
    device_.select();
    constants_.emplace(device_, constants, compute_);
  }

  bool works_behind() const override { return true; }
  void finish() override {
    device_.select();
    wait([this] { compute_.synchronize(); });
  }
  std::vector<StepTimes> step_times() const override { return clock_ ? clock_->recent() : std::vector<StepTimes>(); }

  TensorView to_host(TensorView result) override {
    const auto values = static_cast<std::size_t>(result.rows) * static_cast<std::size_t>(result.cols);
    LLMSRV_CHECK(result.dtype == DType::kF32 && result.row_stride == result.cols);
    LLMSRV_CHECK(values * sizeof(float) <= results_->size());
    if (values > 0) compute_.copy(results_->data(), result.data, values * sizeof(float));
    if (clock_) clock_->end(compute_);
    wait([this] { compute_.synchronize(); });
    return TensorView::f32(reinterpret_cast<float*>(results_->data()), result.rows, result.cols);
  }

 private:
  // Calls what waits for the device.
  template <typename F>
  void wait(const F& f) {
    if (!clock_) return f();
    clock_->wait(f);
  }

  void do_run_step(const StepInputs& inputs, const StepBody& body) override {
    device_.select();
    if (clock_) clock_->begin(compute_);
    queue_step(inputs, body);
    if (clock_) clock_->end(compute_);
  }
  void queue_step(const StepInputs& inputs, const StepBody& body) {
    step_memory_->upload(inputs, compute_);
    const int rows = step_memory_->rows();
    const std::optional<StepForm>& form = step_memory_->form();
    if (!has_graphs_ || !form || graphs_.is_first(*form)) return run_body(body, rows);
    if (!graphs_.has(*form)) graphs_.capture(*form, [&] { run_body(body, rows); });
    graphs_.launch(*form);
  }

  void do_embed(const PackedMatrix& table, float scale, TensorView out) override {
    run(launches_.embed,
        device::Embed{weights_of(table), step_memory_->tokens(), sampler_->tokens(), rows_of(out), scale});
  }

  void do_gather_rows(TensorView in, std::span<const int> rows, TensorView out) override {
    LLMSRV_CHECK(rows.size_bytes() <= picks_->size());
    std::copy(rows.begin(), rows.end(), reinterpret_cast<int*>(picks_staging_->next()));
    picks_staging_->copy(picks_->data(), rows.size_bytes(), compute_);
    run(launches_.gather_rows,
        device::GatherRows{rows_of(in), reinterpret_cast<const std::int32_t*>(picks_->data()), rows_of(out)});
  }

  void do_linear(TensorView in, const Prologue& prologue, std::span<const PackedMatrix> weights,
                 std::span<const float> bias, Accumulate mode, TensorView out) override {
    const TensorView ready = made_ready(in, prologue, weights.front().cols());
    const float* bias_on_device = constants_->of(bias);
    int first_row = 0;
    for (const PackedMatrix& weight : weights) {
      const device::Linear linear{rows_of(ready), weights_of(weight),
                                  bias_on_device != nullptr ? bias_on_device + first_row : nullptr,
                                  rows_of(out.slice_cols(first_row, weight.rows())), mode == Accumulate::kAdd ? 1 : 0};
      library_ && library_->takes(linear) ? library_->run(linear, compute_) : run(launches_.linear, linear);
      first_row += weight.rows();
    }
  }

  // The input of a linear layer after its prologue, in memory.
  TensorView made_ready(TensorView in, const Prologue& prologue, int cols) {
    if (std::holds_alternative<std::monostate>(prologue)) return in;
    LLMSRV_CHECK(in.rows <= limits_.tokens && cols <= limits_.input_cols);
    const TensorView ready{ready_->data(), inner_dtype_, in.rows, cols, cols};
    if (const auto* norm = std::get_if<RmsNorm>(&prologue)) {
      run_norm(in, *norm, ready, false);
    } else {
      run(launches_.gated_mul,
          device::GatedMul{rows_of(in), rows_of(ready), gate_of(std::get<GatedMul>(prologue).kind)});
    }
    return ready;
  }

  void run_norm(TensorView in, const RmsNorm& norm, TensorView out, bool adds) {
    run(launches_.rms_norm,
        device::RmsNorm{rows_of(in), constants_->of(norm.weight), rows_of(out), norm.eps, adds ? 1 : 0});
  }
  void do_add_rms_norm(TensorView in, const RmsNorm& norm, TensorView out) override { run_norm(in, norm, out, true); }

  void do_rope_and_store_kv(TensorView qkv, const HeadShape& shape, const std::optional<HeadNorms>& norms,
                            const RopeTable& rope, const KvLayer& cache) override {
    const std::span<const float> none;
    const auto angles = static_cast<std::size_t>(rope.positions) * static_cast<std::size_t>(shape.head_dim / 2);
    run(launches_.rope_store_kv, device::RopeStoreKv{
                                     .qkv = rows_of(qkv),
                                     .heads = shape.heads,
                                     .query_norm = constants_->of(norms ? norms->query : none),
                                     .key_norm = constants_->of(norms ? norms->key : none),
                                     .eps = norms ? norms->eps : 0.0f,
                                     .cos = constants_->of(std::span(rope.cos, angles)),
                                     .sin = constants_->of(std::span(rope.sin, angles)),
                                     .positions = step_memory_->positions(),
                                     .slot_blocks = step_memory_->slot_blocks(),
                                     .slot_offsets = step_memory_->slot_offsets(),
                                     .cache = blocks_of(cache, shape),
                                 });
  }

  void do_paged_attention(TensorView qkv, const HeadShape& shape, const KvLayer& cache, const AttentionOptions& options,
                          TensorView out) override {
    device::Attention launch{
        .queries = rows_of(qkv),
        .out = rows_of(out),
        .cache = blocks_of(cache, shape),
        .heads = shape.heads,
        .ranges = nullptr,
        .block_ids = step_memory_->block_ids(),
        .range_count = 0,
        .rows_max = 0,
        .segments_max = 0,
        .window = options.window.value_or(limits_.context_len),
        .scale = options.scale,
        .soft_cap = options.soft_cap.value_or(0.0f),
        .has_soft_cap = options.soft_cap ? 1 : 0,
        .by_segments = 0,
        .by_warp_groups = has_warp_groups_ ? 1 : 0,
        .partials = reinterpret_cast<float*>(partials_->data()),
        .partial_count = StepMemory::partials_max(limits_, launches_.segment_keys),
    };
    for (const bool by_segments : {true, false}) {
      const StepMemory::RangeGroup& group = by_segments ? step_memory_->by_segments() : step_memory_->in_one_run();
      if (group.count == 0) continue;
      launch.ranges = step_memory_->ranges() + group.first;
      launch.range_count = group.count;
      launch.rows_max = group.rows_max;
      launch.segments_max = group.segments_max;
      launch.by_segments = by_segments ? 1 : 0;
      run(launches_.attention, launch);
    }
  }

  // Between the cache and the swap pool on the second stream: behind what was computed, and before what will be.
  void do_move_blocks(std::span<const KvLayer> from, std::span<const KvLayer> to,
                      std::span<const BlockMove> moves) override {
    device_.select();
    const bool crosses = from.front().place != to.front().place;
    const DeviceStream& stream = crosses ? copies_ : compute_;
    if (crosses) {
      computed_.record(compute_);
      computed_.hold_up(copies_);
    }
    while (!moves.empty()) {
      // Within one cache a move may read what the one before wrote: one by one.
      const std::size_t count = crosses ? run_length(moves) : 1;
      copy_run(from, to, moves.front(), count, stream);
      moves = moves.subspan(count);
    }
    if (crosses) {
      moved_.record(copies_);
      moved_.hold_up(compute_);
    }
  }

  void do_draw(TensorView logits, std::span<const SampleRow> rows) override {
    sampler_->draw(logits, rows, compute_);
    if (clock_) clock_->end(compute_);
  }
  std::span<const Sampled> do_drawn() override {
    wait([this] { sampler_->wait(); });
    return sampler_->drawn();
  }

  static void copy_run(std::span<const KvLayer> from, std::span<const KvLayer> to, const BlockMove& first,
                       std::size_t count, const DeviceStream& stream) {
    for (std::size_t layer = 0; layer < from.size(); ++layer) {
      const std::size_t block_bytes = from[layer].block_bytes;
      std::byte* target = to[layer].data + block_bytes * static_cast<std::size_t>(first.to);
      const std::byte* source = from[layer].data + block_bytes * static_cast<std::size_t>(first.from);
      if (target != source) stream.copy(target, source, block_bytes * count);
    }
  }

  template <typename Launch>
  void run(device::Code (*launch)(const Launch*, device::Stream), const Launch& arguments) {
    device_.check(launch(&arguments, compute_.handle()));
  }

  device::Weights weights_of(const PackedMatrix& matrix) const {
    return {constants_->of(matrix.data()), matrix.panel_bytes(), packing_of(matrix.format()), matrix.rows(),
            matrix.cols()};
  }
  static device::KvBlocks blocks_of(const KvLayer& cache, const HeadShape& shape) {
    return {cache.data, element_of(cache.dtype), cache.blocks, shape.kv_heads, cache.block_size, shape.head_dim};
  }

  std::size_t ready_bytes(const StepLimits& limits) const {
    return static_cast<std::size_t>(limits.tokens) * static_cast<std::size_t>(limits.input_cols) *
           dtype_bytes(inner_dtype_);
  }
  std::size_t partials_bytes(const StepLimits& limits) const {
    return static_cast<std::size_t>(StepMemory::partials_max(limits, launches_.segment_keys)) *
           static_cast<std::size_t>(limits.shape.heads) * static_cast<std::size_t>(limits.shape.head_dim + 2) *
           sizeof(float);
  }
  static std::size_t picks_bytes(const StepLimits& limits) {
    return static_cast<std::size_t>(limits.result_rows) * sizeof(std::int32_t);
  }
  static std::size_t results_bytes(const StepLimits& limits) {
    return static_cast<std::size_t>(limits.result_rows) * static_cast<std::size_t>(limits.result_cols) * sizeof(float);
  }

  const Device device_;
  const device::LaunchTable& launches_;
  const DType inner_dtype_;
  const bool has_graphs_;
  const DeviceStream compute_;
  const DeviceStream copies_;
  const DeviceEvent computed_;  // on compute_, before the newest copies
  const DeviceEvent moved_;     // on copies_, after them
  const bool has_warp_groups_;  // for prompts
  StepGraphs graphs_;
  StepLimits limits_;
  std::optional<LibraryLinear> library_;  // where promise P3 was given up
  std::optional<Constants> constants_;
  std::optional<StepMemory> step_memory_;
  std::optional<DeviceBuffer> ready_;     // [tokens, input_cols]: rows after a prologue
  std::optional<DeviceBuffer> partials_;  // what segments leave of attention's rows
  std::optional<DeviceBuffer> picks_;     // rows that gather_rows() takes, and where the host puts them
  std::optional<Staging> picks_staging_;
  std::optional<DeviceBuffer> results_;  // what to_host() returns
  std::optional<DeviceSampler> sampler_;
  std::optional<StepClock> clock_;  // only where steps are measured
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const PluginTable& table, const CudaOptions& options) {
  return std::make_unique<CudaBackend>(table, options);
}

DeviceMemory cuda_memory(const PluginTable& table, int device_index) {
  const Device device(table, device_index);
  return {device.properties().memory_bytes, device.properties().free_bytes};
}

}  // namespace llmsrv
