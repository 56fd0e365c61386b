#include "cpp/engine/step_trace.h"

#include <array>
#include <cstdio>
#include <iomanip>
#include <stdexcept>

namespace llmsrv {
namespace {

// A value on its way to a stream, in the form of JSON.
template <typename Write>
struct Json {
  const Write write;
  friend std::ostream& operator<<(std::ostream& out, const Json& json) {
    json.write(out);
    return out;
  }
};

auto quoted(const std::string& text) {
  return Json{[&text](std::ostream& out) {
    out << '"';
    for (const char c : text) {
      if (c == '"' || c == '\\') {
        out << '\\' << c;
      } else if (static_cast<unsigned char>(c) < 0x20) {
        std::array<char, 8> escape{};
        std::snprintf(escape.data(), escape.size(), "\\u%04x", static_cast<unsigned>(c));
        out << escape.data();
      } else {
        out << c;
      }
    }
    out << '"';
  }};
}

// All digits, so that the same number is read again.
auto exact(double value) {
  return Json{[value](std::ostream& out) {
    std::array<char, 40> text{};
    std::snprintf(text.data(), text.size(), "%.17g", value);
    out << text.data();
  }};
}

template <typename Items, typename Write>
auto list(const Items& items, const Write& write) {
  return Json{[&items, write](std::ostream& out) {
    const char* separator = "[";
    for (const auto& item : items) {
      out << separator;
      write(out, item);
      separator = ", ";
    }
    out << (items.empty() ? "[]" : "]");
  }};
}

template <typename Numbers>
auto numbers(const Numbers& values) {
  return list(values, [](std::ostream& out, auto value) { out << value; });
}

auto moves(const std::vector<BlockMove>& moves) {
  return list(moves,
              [](std::ostream& out, const BlockMove& move) { out << '[' << move.from << ", " << move.to << ']'; });
}

auto weights_of(const std::map<std::string, double>& weights) {
  return Json{[&weights](std::ostream& out) {
    out << '{';
    const char* separator = "";
    for (const auto& [tenant, weight] : weights) {
      out << separator << quoted(tenant) << ": " << exact(weight);
      separator = ", ";
    }
    out << '}';
  }};
}

std::string mode_name(PreemptionMode mode) {
  if (mode == PreemptionMode::kAuto) return "auto";
  return mode == PreemptionMode::kSwap ? "swap" : "recompute";
}

std::string policy_name(SchedulingPolicy policy) {
  if (policy == SchedulingPolicy::kFcfs) return "fcfs";
  return policy == SchedulingPolicy::kPriority ? "priority" : "fair";
}

}  // namespace

StepTrace::StepTrace(const std::string& path, const SchedulerLimits& limits) : file_(path) {
  if (!file_) throw std::invalid_argument("trace_steps: cannot write " + path);
  file_ << std::boolalpha;
  file_ << "{\"limits\": {\"block_size\": " << limits.block_size << ", \"blocks\": " << limits.blocks
        << ", \"swap_blocks\": " << limits.swap_blocks << ", \"max_sequences\": " << limits.max_sequences
        << ", \"max_step_tokens\": " << limits.max_step_tokens << ", \"prefix_cache\": " << limits.prefix_cache
        << ", \"prefix_hash_bits\": " << limits.prefix_hash_bits
        << ", \"prefix_hash_key\": " << numbers(limits.prefix_hash_key)
        << ", \"once_first\": " << (limits.eviction == EvictionOrder::kOnceFirst) << ", \"preemption_mode\": \""
        << mode_name(limits.preemption) << "\", \"scheduling_policy\": \"" << policy_name(limits.policy)
        << "\", \"tenant_weights\": " << weights_of(limits.tenant_weights) << "}}\n";
}

void StepTrace::add(const Sequence& sequence) {
  const StopRules& stop = sequence.stop_rules();
  const CacheRules& cache = sequence.cache_rules();
  const std::string sibling = cache.sibling ? std::to_string(*cache.sibling) : "null";
  file_ << "{\"add\": {\"id\": " << sequence.id() << ", \"prompt\": " << numbers(sequence.prompt())
        << ", \"max_tokens\": " << stop.max_tokens << ", \"min_tokens\": " << stop.min_tokens
        << ", \"stop_token_ids\": " << numbers(stop.stop_token_ids)
        << ", \"eos_token_ids\": " << numbers(stop.eos_token_ids) << ", \"salt\": " << quoted(cache.salt)
        << ", \"reads\": " << cache.reads << ", \"fills\": " << cache.fills << ", \"sibling\": " << sibling
        << ", \"priority\": " << sequence.claim().priority << ", \"tenant\": " << quoted(sequence.claim().tenant)
        << "}}\n";
}

void StepTrace::remove(SequenceId id) { file_ << "{\"remove\": " << id << "}\n"; }

void StepTrace::clear_prefix_cache(int blocks_freed) { file_ << "{\"clear_prefix_cache\": " << blocks_freed << "}\n"; }

void StepTrace::costs(const PreemptionCosts& costs) {
  if (last_costs_ == costs) return;
  last_costs_ = costs;
  file_ << "{\"costs\": {\"swap_s_per_block\": " << exact(costs.swap_s_per_block)
        << ", \"recompute_s_per_token\": " << exact(costs.recompute_s_per_token) << "}}\n";
}

void StepTrace::plan(const StepPlan& plan) {
  const auto range_list = list(plan.ranges, [](std::ostream& out, const PlannedRange& range) {
    out << '[' << range.sequence << ", " << range.first_position << ", " << range.token_count << ", " << range.samples
        << ']';
  });
  file_ << "{\"plan\": {\"ranges\": " << range_list << ", \"token_count\": " << plan.token_count
        << ", \"swap_outs\": " << moves(plan.swap_outs) << ", \"copies\": " << moves(plan.copies)
        << ", \"swap_ins\": " << moves(plan.swap_ins) << ", \"admitted\": " << numbers(plan.admitted)
        << ", \"resumed\": " << numbers(plan.resumed) << ", \"preempted\": " << numbers(plan.preempted)
        << ", \"swapped\": " << numbers(plan.swapped) << "}}\n";
}

void StepTrace::commit(std::span<const TokenId> tokens) { file_ << "{\"commit\": " << numbers(tokens) << "}\n"; }

}  // namespace llmsrv
