"""What became of a request, in one value: what its line in the log and its span are made of."""

import time
from dataclasses import dataclass, field

from llmsrv.errors import DEFAULT_REASON, Code
from llmsrv.origin import ORIGIN, Origin
from llmsrv.params import ChatPrompt, FinishReason, Prompt, TextPrompt, Timing, Usage

CLIENT_LEFT = "CLIENT_LEFT"
ENDED_BY_SERVER = "ENDED_BY_SERVER"
# By status code; all others are refusals.
_OUTCOMES = {
    Code.CANCELLED: "aborted",
    Code.DEADLINE_EXCEEDED: "deadline",
    Code.INTERNAL: "error",
}
_FINISHES = frozenset(each.value for each in FinishReason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What is known of a request when it comes."""

    request_id: str = ""  # the client's; the service makes one for what it accepts
    tenant: str = ""  # as people may see it
    prompt: str = ""  # its beginning, where the log may have it
    origin: Origin = field(default_factory=ORIGIN.get)
    at_s: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """A request that has ended, refused ones too. None: it did not come so far."""

    arrival: Arrival
    request_id: str
    model: str
    outcome: str  # stop, length, time_limit, aborted, rejected, deadline or error
    reason: str  # a word for programs where the outcome does not say it all; may be empty
    usage: Usage | None = None
    timing: Timing | None = None
    first_token_s: float | None = None  # since arrival
    total_s: float


def outcome_of(counted: str, reason: str = "") -> tuple[str, str]:
    """Outcome and reason from what the service counts: a finish reason, or a status code's name with its reason."""
    if counted in _FINISHES:
        return counted, ENDED_BY_SERVER if counted == FinishReason.ABORTED.value else ""
    code = Code[counted]
    usual = CLIENT_LEFT if code is Code.CANCELLED else DEFAULT_REASON[code]
    return _OUTCOMES.get(code, "rejected"), reason or usual


def excerpt(prompt: Prompt, chars_max: int) -> str:
    """The beginning of a prompt as text, without looking at more of it than that."""
    if chars_max == 0:
        return ""
    if isinstance(prompt, TextPrompt):
        text = prompt.text[: chars_max + 1]
    elif isinstance(prompt, ChatPrompt):
        text = "\n".join(
            f"{each.get('role')}: {str(each.get('content'))[:chars_max]}" for each in prompt.messages[:100]
        )
    else:
        text = " ".join(str(each) for each in prompt.token_ids[:chars_max])
    return text if len(text) <= chars_max else text[: chars_max - 3] + "..."
