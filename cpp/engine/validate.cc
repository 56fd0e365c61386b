#include "cpp/engine/validate.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <set>
#include <string>

namespace llmsrv {
namespace {

constexpr std::size_t kRequestIdBytesMax = 256;
constexpr std::size_t kCacheSaltBytesMax = 1024;
constexpr std::size_t kTenantBytesMax = 1024;
constexpr std::size_t kStopStringsMax = 64;
constexpr std::size_t kStopStringBytesMax = 1024;
// All are compared with every generated token, and each sequence holds them.
constexpr std::size_t kStopTokensMax = 1024;
constexpr float kLogitBiasMax = 100.0f;

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

class Checker {
 public:
  Checker(const ModelSpec& spec, const EngineConfig& config, int kv_blocks)
      : spec_(spec), config_(config), kv_blocks_(kv_blocks) {}

  void require(bool holds, const std::string& field, const std::string& description) {
    if (!holds && violations_.size() < kViolationsMax) violations_.push_back({field, description});
  }
  // NaN is in no range.
  void in_range(float value, float min, float max, const std::string& field, const std::string& range) {
    require(value >= min && value <= max, field, "must be in " + range + ", is " + number(value));
  }
  void is_time(std::optional<double> seconds, const std::string& field) {
    require(!seconds || (std::isfinite(*seconds) && *seconds > 0.0), field,
            "must be finite and positive, is " + number(seconds.value_or(0.0)) + " s");
  }
  void in_vocabulary(const std::vector<TokenId>& ids, const std::string& field) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (known(ids[i])) continue;
      require(false, field + "[" + std::to_string(i) + "]",
              "token " + std::to_string(ids[i]) + " is not in the vocabulary of " + std::to_string(spec_.vocab_size));
    }
  }

  void check_prompt(const Request& request) {
    require(!request.id.empty() && request.id.size() <= kRequestIdBytesMax, "request_id", "must have 1 to 256 bytes");
    require(request.cache_salt.size() <= kCacheSaltBytesMax, "cache_salt", "must have at most 1024 bytes");
    require(!request.prompt.empty(), "input", "the prompt is empty");
    in_vocabulary(request.prompt, "input.token_ids");
    const auto prompt_tokens = static_cast<std::int64_t>(request.prompt.size());
    if (never_fits(request, spec_, config_, kv_blocks_)) return;
    if (prompt_tokens >= config_.max_model_len) {
      require(false, "input",
              "the prompt has " + std::to_string(prompt_tokens) + " tokens; with at least one token to generate, " +
                  std::to_string(config_.max_model_len) + " fit (max_model_len)");
    } else if (!request.stopping.max_tokens) {
      require(prompt_tokens + request.stopping.min_tokens <= config_.max_model_len, "stopping.min_tokens",
              "prompt (" + std::to_string(prompt_tokens) + " tokens) plus min_tokens (" +
                  std::to_string(request.stopping.min_tokens) + ") exceed max_model_len (" +
                  std::to_string(config_.max_model_len) + ")");
    } else {
      require(prompt_tokens + *request.stopping.max_tokens <= config_.max_model_len, "stopping.max_tokens",
              "prompt (" + std::to_string(prompt_tokens) + " tokens) plus max_tokens (" +
                  std::to_string(*request.stopping.max_tokens) + ") exceed max_model_len (" +
                  std::to_string(config_.max_model_len) + ")");
    }
  }

  void check_scheduling(const Request& request) {
    // A field that changes nothing is not accepted in silence (promise P10).
    require(request.priority == 0 || config_.scheduling_policy == SchedulingPolicy::kPriority, "priority",
            "must be 0: requests are not scheduled by priority here (scheduling_policy)");
    require(request.tenant.size() <= kTenantBytesMax, "tenant", "must have at most 1024 bytes");
    is_time(request.queue_timeout_s, "queue_timeout");
    is_time(request.stopping.time_limit_s, "stopping.time_limit");
    const std::optional<double> deadline_s = request.deadline_s;
    require(!deadline_s || (std::isfinite(*deadline_s) && *deadline_s >= 0.0), "deadline",
            "must be finite and not negative, is " + number(deadline_s.value_or(0.0)) + " s");
  }

  void check_sampling(const Request& request) {
    const SamplingParams& sampling = request.sampling;
    require(std::isfinite(sampling.temperature) && sampling.temperature >= 0.0f, "sampling.temperature",
            "must be finite and not negative, is " + number(sampling.temperature));
    require(sampling.top_p > 0.0f && sampling.top_p <= 1.0f, "sampling.top_p",
            "must be in (0, 1], is " + number(sampling.top_p));
    require(sampling.top_k >= 0, "sampling.top_k", "must not be negative");
    in_range(sampling.min_p, 0.0f, 1.0f, "sampling.min_p", "[0, 1]");
    in_range(sampling.frequency_penalty, -2.0f, 2.0f, "sampling.frequency_penalty", "[-2, 2]");
    in_range(sampling.presence_penalty, -2.0f, 2.0f, "sampling.presence_penalty", "[-2, 2]");
    require(std::isfinite(sampling.repetition_penalty) && sampling.repetition_penalty > 0.0f,
            "sampling.repetition_penalty", "must be finite and positive, is " + number(sampling.repetition_penalty));
    require(request.n >= 1 && request.n <= config_.max_choices, "sampling.n",
            "must be in 1.." + std::to_string(config_.max_choices) + ", is " + std::to_string(request.n));
    for (const auto& [token, bias] : sampling.logit_bias) {
      if (known(token) && std::abs(bias) <= kLogitBiasMax) continue;
      const std::string field = "sampling.logit_bias[" + std::to_string(token) + "]";
      require(known(token), field, "the token is not in the vocabulary of " + std::to_string(spec_.vocab_size));
      in_range(bias, -kLogitBiasMax, kLogitBiasMax, field, "[-100, 100]");
    }
    require(sampling.allowed_token_ids.size() <= static_cast<std::size_t>(spec_.vocab_size),
            "sampling.allowed_token_ids", "holds more ids than the vocabulary");
    in_vocabulary(sampling.allowed_token_ids, "sampling.allowed_token_ids");
  }

  void check_stopping(const Request& request) {
    const StoppingParams& stopping = request.stopping;
    require(!stopping.max_tokens || *stopping.max_tokens >= 1, "stopping.max_tokens", "must be at least 1");
    require(stopping.min_tokens >= 0, "stopping.min_tokens", "must not be negative");
    require(!stopping.max_tokens || stopping.min_tokens <= *stopping.max_tokens, "stopping.min_tokens",
            "must not exceed max_tokens");
    require(stopping.stop_token_ids.size() <= kStopTokensMax, "stopping.stop_token_ids", "at most 1024 are allowed");
    in_vocabulary(stopping.stop_token_ids, "stopping.stop_token_ids");
    require(stopping.stop_strings.size() <= kStopStringsMax, "stopping.stop_strings", "at most 64 are allowed");
    for (std::size_t i = 0; i < stopping.stop_strings.size(); ++i) {
      const std::size_t bytes = stopping.stop_strings[i].size();
      require(bytes >= 1 && bytes <= kStopStringBytesMax, "stopping.stop_strings[" + std::to_string(i) + "]",
              "must have 1 to 1024 bytes");
    }
    check_something_can_be_drawn(request);
  }

  void check_output(const OutputOptions& output) {
    require(output.top_logprobs >= 0 && output.top_logprobs <= config_.max_logprobs, "output.top_logprobs",
            "must be in 0.." + std::to_string(config_.max_logprobs) + ", is " + std::to_string(output.top_logprobs));
    require(output.top_logprobs == 0 || output.logprobs || output.prompt_logprobs, "output.top_logprobs",
            "needs logprobs or prompt_logprobs");
  }

  std::vector<Violation> take() { return std::move(violations_); }

 private:
  // A hostile request must not make a megabyte of messages.
  static constexpr std::size_t kViolationsMax = 64;

  bool known(TokenId token) const { return token >= 0 && token < spec_.vocab_size; }

  // Before token number min_tokens all stop ids are forbidden: something else must be there to draw.
  void check_something_can_be_drawn(const Request& request) {
    if (request.stopping.min_tokens <= 1 || request.stopping.stop_token_ids.size() > kStopTokensMax) return;
    std::set<TokenId> stops(request.stopping.stop_token_ids.begin(), request.stopping.stop_token_ids.end());
    if (!request.stopping.ignore_eos) stops.insert(config_.eos_token_ids.begin(), config_.eos_token_ids.end());
    const std::vector<TokenId>& allowed = request.sampling.allowed_token_ids;
    const auto is_stop = [&](TokenId token) { return stops.count(token) != 0; };
    if (allowed.empty()) {
      require(stops.size() < static_cast<std::size_t>(spec_.vocab_size), "stopping.stop_token_ids",
              "hold the whole vocabulary, which min_tokens forbids");
    } else {
      require(!std::all_of(allowed.begin(), allowed.end(), is_stop), "sampling.allowed_token_ids",
              "holds only stop tokens, which min_tokens forbids");
    }
  }

  const ModelSpec& spec_;
  const EngineConfig& config_;
  const int kv_blocks_;
  std::vector<Violation> violations_;
};

}  // namespace

std::vector<Violation> validate(const Request& request, const ModelSpec& spec, const EngineConfig& config,
                                int kv_blocks) {
  Checker checker(spec, config, kv_blocks);
  checker.check_prompt(request);
  checker.check_scheduling(request);
  checker.check_sampling(request);
  checker.check_stopping(request);
  checker.check_output(request.output);
  return checker.take();
}

std::optional<Status> never_fits(const Request& request, const ModelSpec& spec, const EngineConfig& config,
                                 int kv_blocks) {
  const std::size_t tokens = request.prompt.size();
  const std::size_t needed = tokens / static_cast<std::size_t>(config.block_size) + 1;  // with one token to generate
  if (tokens >= static_cast<std::size_t>(spec.max_position) || needed <= static_cast<std::size_t>(kv_blocks)) {
    return std::nullopt;
  }
  return Status(StatusCode::kFailedPrecondition,
                "the prompt can never fit: with one token to generate it needs " + std::to_string(needed) +
                    " KV blocks, and there are " + std::to_string(kv_blocks) + " in all (kv_cache_memory)",
                {{"needed_blocks", std::to_string(needed)}, {"total_blocks", std::to_string(kv_blocks)}});
}

}  // namespace llmsrv
