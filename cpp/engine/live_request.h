// A request between its acceptance and its final output, as the engine thread knows it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cpp/base/types.h"
#include "cpp/engine/expiry.h"
#include "cpp/engine/output.h"
#include "cpp/engine/request.h"
#include "cpp/engine/state_times.h"

namespace llmsrv {

struct LiveRequest {
  RequestKey key = 0;
  Request request;  // its prompt was moved to `prompt`
  std::shared_ptr<const std::vector<TokenId>> prompt;
  std::uint64_t seed = 0;
  std::vector<TokenId> stop_ids;  // every id that may end it: what min_tokens forbids
  StopRules stop_rules;
  std::vector<SequenceId> sequences;  // by choice; an ended one is gone from the scheduler
  int choices_left = 0;
  int choices_added = 0;         // that the scheduler has got
  int prompt_logprobs_next = 1;  // next prompt position whose log-probability is due
  bool unusable = false;         // a row of its prompt has no usable number: it is to be failed
  Usage usage;
  int preemptions = 0;
  double submitted_s = 0.0;
  std::vector<Expiry> expiries;  // as they stand in the queue
  std::optional<double> admitted_s;
  std::optional<double> first_token_s;
  double last_token_s = 0.0;

  Timing timing(double now_s) const {
    Timing timing;
    timing.queue_s = admitted_s.value_or(now_s) - submitted_s;
    if (admitted_s) timing.prefill_s = first_token_s.value_or(now_s) - *admitted_s;
    if (first_token_s) timing.decode_s = last_token_s - *first_token_s;
    timing.preemptions = preemptions;
    return timing;
  }
};

// Which choice of which request a sequence is. The request outlives its sequences.
struct Choice {
  LiveRequest* live = nullptr;
  int index = 0;
  StateClock clock;
};

}  // namespace llmsrv
