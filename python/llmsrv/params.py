"""What a caller asks of one generation, and what comes back: plain values for the service, the transports and LLM."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn, when generation ends, and what comes back beside text.

    None means: take the model's own default (its generation_config), then the server's. A value that is set always
    wins, zero included. Ranges are checked by the core, all at once; nothing is clamped.
    """

    temperature: float | None = None  # >= 0; 0 is greedy
    top_p: float | None = None  # (0, 1]
    top_k: int | None = None  # 0 keeps all
    min_p: float | None = None  # [0, 1]
    frequency_penalty: float | None = None  # [-2, 2]
    presence_penalty: float | None = None  # [-2, 2]
    repetition_penalty: float | None = None  # > 0; 1 is off
    seed: int | None = None  # None draws one: then the output differs from call to call
    n: int = 1  # sequences drawn from one prompt
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: Sequence[int] = ()

    max_tokens: int | None = None  # None: what the context leaves
    min_tokens: int = 0  # no end of sequence and no stop before
    stop: Sequence[str] | str = ()  # strings; the earliest match ends the sequence
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    time_limit_s: float | None = None  # from submission; what is done by then is the result
    include_stop: bool = False  # keep the matched stop in the text, and a stop token in the ids

    text: bool = True  # False skips the detokenizer: token ids only
    skip_special_tokens: bool = True
    logprobs: bool = False
    top_logprobs: int = 0  # alternatives per position, with logprobs
    prompt_logprobs: bool = False

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text, tokenized with the tokenizer's own special tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, taken as they are."""

    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation for the model's chat template. Each message has at least `role` and `content`."""

    messages: Sequence[Mapping[str, object]]
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool | None = None  # None: yes, unless the final message is continued
    continue_final_message: bool = False


Prompt = TextPrompt | TokenPrompt | ChatPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One generation as every transport hands it to the service."""

    prompt: Prompt
    params: SamplingParams = field(default_factory=SamplingParams)
    model: str = ""  # empty: the served model
    request_id: str = ""  # empty: the service makes one
    truncate_prompt_tokens: int | None = None  # keep this many last tokens
    cache_salt: str = ""  # computed prefixes are shared only within one salt
    tenant: str = ""  # whose share it takes, under the policy "fair"; empty: cache_salt names the tenant
    bypass_prefix_cache: bool = False  # neither read nor fill the prefix cache
    priority: int = 0  # lower runs earlier, under the scheduling policy "priority"
    queue_timeout_s: float | None = None  # longest wait for a place in a batch, then RESOURCE_EXHAUSTED
    deadline_s: float | None = None  # seconds from now; afterwards nobody reads the answer: DEADLINE_EXCEEDED


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one token in the model's raw distribution. None at the first prompt position."""

    token_id: int
    logprob: float | None
    rank: int
    top: tuple[tuple[int, float], ...] = ()  # (token id, log-probability), likeliest first


class FinishReason(str, Enum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    TIME_LIMIT = "time_limit"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Finish:
    """How a sequence ended. At most one of the last three is set, and only with STOP."""

    reason: FinishReason
    eos_token_id: int | None = None
    stop_token_id: int | None = None
    stop_string: str | None = None


@dataclass(slots=True)
class Delta:
    """What one sequence gained. `token_count` counts what was generated, a stop token that is left out of ids too."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    token_count: int = 0
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class PromptInfo:
    """What is known of the prompt after templating and truncation."""

    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprob] = ()
    cached_token_count: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request cost. `completion_tokens` counts all sequences, up to each one's stop."""

    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time went, in seconds by the core's monotonic clock."""

    queue_s: float
    prefill_s: float
    decode_s: float
    preemptions: int


@dataclass(frozen=True, slots=True)
class Update:
    """News of one request: `prompt` only in the first update; `usage` and `timing` only in the last."""

    prompt: PromptInfo | None
    deltas: Sequence[Delta]
    usage: Usage | None = None
    timing: Timing | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished sequence."""

    index: int
    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprob]
    finish: Finish

    @property
    def finish_reason(self) -> str:
        """One of "stop", "length", "time_limit" and "aborted"."""
        return self.finish.reason.value


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The whole answer to one request. `text` and its neighbours are those of the first sequence."""

    request_id: str
    model: str
    prompt: PromptInfo
    completions: Sequence[Completion]
    usage: Usage
    timing: Timing

    @property
    def text(self) -> str:
        """The generated text."""
        return self.completions[0].text

    @property
    def token_ids(self) -> Sequence[int]:
        """The generated ids."""
        return self.completions[0].token_ids

    @property
    def logprobs(self) -> Sequence[TokenLogprob]:
        """One entry per id, if asked for."""
        return self.completions[0].logprobs

    @property
    def finish_reason(self) -> str:
        """One of "stop", "length", "time_limit" and "aborted"."""
        return self.completions[0].finish_reason
