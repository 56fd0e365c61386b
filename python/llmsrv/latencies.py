"""How long requests take and how large they are, as histograms: what the core's counters do not tell.

Thread rule: the event loop's. An observation costs about a microsecond, one for each token that arrives.
"""

import time
from bisect import bisect_left
from collections.abc import Sequence

from llmsrv.params import SamplingParams, Timing, Usage
from llmsrv.recent import Recent

# From 1 ms on, where small models live, to minutes; three bounds per decade.
SECONDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0),
)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
CHOICES = (1, 2, 5, 10, 20, 50, 100)


class Histogram:
    """How many values lie at or below each bound, and above the one before it."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last: above all bounds
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Adds a value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


class Latencies:
    """The histograms of one service. Requests that ended with an error, or that nobody read to the end, are in none
    but those of their tokens."""

    def __init__(self) -> None:
        self.recent = Recent(time.monotonic())
        self.first_token_s = Histogram(SECONDS)  # from arrival, tokenizing included
        self.between_tokens_s = Histogram(SECONDS)
        self.per_token_s = Histogram(SECONDS)  # of a whole request: its mean after the first token
        self.request_s = Histogram(SECONDS)  # from arrival to the last token
        self.queue_s = Histogram(SECONDS)
        self.prefill_s = Histogram(SECONDS)
        self.decode_s = Histogram(SECONDS)
        self.inference_s = Histogram(SECONDS)  # prefill and decode
        self.prompt_tokens = Histogram(TOKENS)
        self.generation_tokens = Histogram(TOKENS)
        self.params_n = Histogram(CHOICES)
        self.params_max_tokens = Histogram(TOKENS)

    def watch(
        self, params: SamplingParams, arrived: float, *, prompt_tokens: int = 0, tenant: str = ""
    ) -> "RequestWatch":
        """For a request that was accepted. `arrived`: monotonic seconds. `tenant`: whose tokens its tokens are."""
        self.params_n.observe(params.n)
        if params.max_tokens is not None:
            self.params_max_tokens.observe(params.max_tokens)
        return RequestWatch(self, arrived, prompt_tokens, tenant)


class RequestWatch:
    """Sees the tokens of one request arrive."""

    def __init__(self, latencies: Latencies, arrived: float, prompt_tokens: int, tenant: str) -> None:
        self._latencies = latencies
        self._recent = latencies.recent
        self._arrived = arrived
        self._prompt_tokens = prompt_tokens
        self._tenant = tenant
        self._first: float | None = None
        self._last: dict[int, float] = {}  # by sequence

    @property
    def first_token_s(self) -> float | None:
        """From arrival to the first token."""
        return None if self._first is None else self._first - self._arrived

    def note_tokens(self, index: int, count: int, now: float) -> None:
        """So many tokens of a sequence came. REQUIRES: at least one."""
        if self._first is None:
            self._first = now
            self._latencies.first_token_s.observe(now - self._arrived)
            self._recent.note_first_token(self._tenant, now - self._arrived, self._prompt_tokens, now)
        last, gap = self._last.get(index), None
        if last is not None:
            gap = (now - last) / count
            self._latencies.between_tokens_s.observe(gap, count)
        self._recent.note_tokens(self._tenant, count, gap, now)
        self._last[index] = now

    def note_end(self, usage: Usage, timing: Timing, now: float) -> None:
        """The request is complete."""
        into = self._latencies
        into.request_s.observe(now - self._arrived)
        self._recent.note_end(now - self._arrived, now)
        if self._first is not None and usage.completion_tokens > len(self._last):
            spent = sum(last - self._first for last in self._last.values())
            into.per_token_s.observe(spent / (usage.completion_tokens - len(self._last)))
        into.queue_s.observe(timing.queue_s)
        into.prefill_s.observe(timing.prefill_s)
        into.decode_s.observe(timing.decode_s)
        into.inference_s.observe(timing.prefill_s + timing.decode_s)
        into.prompt_tokens.observe(usage.prompt_tokens)
        into.generation_tokens.observe(usage.completion_tokens)
