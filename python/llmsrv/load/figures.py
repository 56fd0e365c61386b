"""What became of requests, and the figures of a run. Each figure's meaning stands in DEFINITIONS.

Times are seconds on the client's clock; figures are in milliseconds where their name says so.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

DEFINITIONS = {
    "ttft_ms": "time to first token: request sent to first token received",
    "tpot_ms": "time per output token: (last token - first token) / (tokens - 1), of one request",
    "itl_ms": "inter-token latency: gap between two messages of one stream; a message may hold several tokens",
    "e2e_ms": "end to end: request sent to end received",
    "lag_ms": "sent later than planned: the client's own delay; where it is large, distrust the figures",
}
GOODPUT_DEFINITION = "requests per second that kept every limit, failed ones counted as not having kept them"
SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
LIMITED = ("ttft", "tpot", "e2e")

Figures = dict[str, Any]


@dataclass(slots=True)
class Sample:
    """What became of one request."""

    planned: float
    sent: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # (time, tokens) of each message
    ended: float = 0.0
    input_tokens: int = 0
    error: str = ""  # a word for the kind of failure
    message: str = ""  # the server's own words for it

    @property
    def tokens(self) -> int:
        """Generated ones."""
        return sum(tokens for _, tokens in self.arrivals)

    @property
    def is_good(self) -> bool:
        """Whether it ended well, with at least one token."""
        return not self.error and bool(self.arrivals)

    @property
    def ttft_ms(self) -> float:
        """See DEFINITIONS. REQUIRES: is_good."""
        return (self.arrivals[0][0] - self.sent) * 1e3

    @property
    def tpot_ms(self) -> float | None:
        """See DEFINITIONS; None for a single token. REQUIRES: is_good."""
        if self.tokens < 2:
            return None
        return (self.arrivals[-1][0] - self.arrivals[0][0]) * 1e3 / (self.tokens - 1)

    @property
    def itl_ms(self) -> list[float]:
        """See DEFINITIONS."""
        times = [time for time, _ in self.arrivals]
        return [(later - earlier) * 1e3 for earlier, later in pairwise(times)]

    @property
    def e2e_ms(self) -> float:
        """See DEFINITIONS."""
        return (self.ended - self.sent) * 1e3


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """By linear interpolation; and the mean and the largest. None of nothing."""
    if not values:
        return None
    ordered = sorted(values)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return round(ordered[low] + (place - low) * (ordered[high] - ordered[low]), 3)

    found = {name: at(share) for name, share in SHARES.items()}
    return {**found, "mean": round(sum(ordered) / len(ordered), 3), "max": round(ordered[-1], 3)}


def summary(samples: Sequence[Sample]) -> Figures:
    """The figures of one run. REQUIRES: at least one sample."""
    good = [sample for sample in samples if sample.is_good]
    began = min(sample.sent for sample in samples)
    last = max((sample.arrivals[-1][0] for sample in good), default=began)
    seconds = max(last - began, 1e-9)
    output_tokens = sum(sample.tokens for sample in good)
    return {
        "requests": len(samples),
        "ok": len(good),
        "errors": dict(Counter(sample.error or "EMPTY" for sample in samples if not sample.is_good)),
        "seconds": round(seconds, 3),
        "requests_per_s": round(len(good) / seconds, 3),
        "output_tokens": output_tokens,
        "output_tokens_per_s": round(output_tokens / seconds, 1),
        "input_tokens_per_s": round(sum(sample.input_tokens for sample in good) / seconds, 1),
        "ttft_ms": percentiles([sample.ttft_ms for sample in good]),
        "tpot_ms": percentiles([each for sample in good if (each := sample.tpot_ms) is not None]),
        "itl_ms": percentiles([each for sample in good for each in sample.itl_ms]),
        "e2e_ms": percentiles([sample.e2e_ms for sample in good]),
        "lag_ms": percentiles([(sample.sent - sample.planned) * 1e3 for sample in samples]),
    }


def parse_limits(text: str) -> dict[str, float]:
    """`ttft:200,tpot:50` as milliseconds by name. Raises ValueError."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition(":")
        try:
            limit = float(value)
        except ValueError:
            limit = 0.0
        if name not in LIMITED or not 0 < limit < float("inf") or name in limits:
            raise ValueError(
                f"{part.strip()!r}: needs {', '.join(LIMITED)} and milliseconds, each once: ttft:200,tpot:50"
            )
        limits[name] = limit
    return limits


def goodput(samples: Sequence[Sample], limits_ms: Mapping[str, float], seconds: float) -> Figures:
    """Requests that kept all limits: how many, which share of all, and how many per second. REQUIRES: some samples."""
    kept = sum(1 for sample in samples if sample.is_good and _keeps(sample, limits_ms))
    return {
        "limits_ms": dict(limits_ms),
        "requests": kept,
        "share": round(kept / len(samples), 4),
        "requests_per_s": round(kept / seconds, 3),
    }


def _keeps(sample: Sample, limits_ms: Mapping[str, float]) -> bool:
    found = {"ttft": sample.ttft_ms, "tpot": sample.tpot_ms or 0.0, "e2e": sample.e2e_ms}
    return all(found[name] <= limit for name, limit in limits_ms.items())
