// What the engine tells the front end: news of one sequence, and the end of a request.
#pragma once

#include <optional>
#include <vector>

#include "cpp/base/status.h"
#include "cpp/base/types.h"
#include "cpp/sample/params.h"
#include "cpp/sched/stop.h"

namespace llmsrv {

struct Usage {
  int prompt_tokens = 0;
  int completion_tokens = 0;     // all choices together
  int cached_prompt_tokens = 0;  // from the prefix cache
};

// Seconds by the monotonic clock.
struct Timing {
  double queue_s = 0.0;    // accepted to first admitted
  double prefill_s = 0.0;  // admitted to first token
  double decode_s = 0.0;   // first token to last
  int preemptions = 0;
};

// `finish` or `error` ends a choice. The last output of a request is `final`: exactly one per accepted request (P2).
struct Output {
  RequestKey request = 0;
  int index = 0;  // choice, 0..n-1
  std::vector<TokenId> token_ids;
  std::vector<TokenLogprob> logprobs;         // one per token, when asked for
  std::vector<TokenLogprob> prompt_logprobs;  // of the next prompt positions, starting with the second token
  std::optional<Finish> finish;
  std::optional<Status> error;
  bool final = false;
  Usage usage;    // of the whole request; in the final output
  Timing timing;  // likewise
};

}  // namespace llmsrv
