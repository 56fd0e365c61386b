"""What happened in the last two minutes: rates, percentiles and tenants, for people who look at a running server.

Counters that only grow (the core's, and `latencies.py`) tell a collector everything; a page and a terminal have no
history, and percentiles of a whole day say nothing of now. Time is cut into slices; a slice is made when something
happens in it, so an idle server does nothing. Everything is bounded: slices, bins, and the tenants of a slice.

Thread rule: the event loop's. A note costs about a microsecond.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

SLICE_S = 2.0
SLICES = 60  # kept
WINDOW_SLICES = 30  # those that percentiles, and the shares of tenants, are made of
RATE_SLICES = 5  # those that rates are made of, the one that has just begun included
TENANTS_MAX = 32  # told apart in one slice; the others are counted together
SHOWN_TENANTS_MAX = 16

# From 0.1 ms to 1,000 s; each bound is a twelfth above the one before it: that is how exact a percentile is.
_BINS_PER_DECADE = 29
BOUNDS_S = tuple(1e-4 * 10 ** (i / _BINS_PER_DECADE) for i in range(7 * _BINS_PER_DECADE + 1))


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of how many values, and the values, in seconds."""

    count: int
    p50: float
    p90: float
    p99: float


@dataclass(slots=True)
class Work:
    """What was done for somebody."""

    requests: int = 0  # that got their first token
    prompt_tokens: int = 0  # of these, cached ones too
    generation_tokens: int = 0

    def add(self, other: "Work") -> None:
        """Adds another one's."""
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.generation_tokens += other.generation_tokens


@dataclass(frozen=True, slots=True)
class Rates:
    """Work per second."""

    requests_per_s: float
    prompt_tokens_per_s: float
    generation_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Moment:
    """One slice: what a point of a chart shows. No percentiles where nothing was measured."""

    age_s: float  # of its end; of the slice that has just begun it is not positive
    prompt_tokens: int
    generation_tokens: int
    first_token_s: Percentiles | None
    between_tokens_s: Percentiles | None


@dataclass(slots=True)
class _Slice:
    number: int  # of its beginning, in slices of the monotonic clock
    first_token: list[int] = field(default_factory=lambda: _bins())
    between_tokens: list[int] = field(default_factory=lambda: _bins())
    request: list[int] = field(default_factory=lambda: _bins())
    work: Work = field(default_factory=Work)
    tenants: dict[str, Work] = field(default_factory=dict)
    others: Work = field(default_factory=Work)
    summed: tuple[Percentiles | None, Percentiles | None] | None = None  # of the first two, once it is over

    def work_of(self, tenant: str) -> Work:
        work = self.tenants.get(tenant)
        if work is None:
            if len(self.tenants) >= TENANTS_MAX:
                return self.others
            work = self.tenants[tenant] = Work()
        return work

    def percentiles(self, current: int) -> tuple[Percentiles | None, Percentiles | None]:
        """Of the first token and between tokens. `current`: number of the slice that is not over."""
        if self.summed is not None:
            return self.summed
        found = _percentiles([self.first_token]), _percentiles([self.between_tokens])
        if self.number < current:
            self.summed = found
        return found


class Recent:
    """The slices of one service. Times are monotonic seconds and never go back."""

    def __init__(self, now: float) -> None:
        self._began = now
        self._slices: deque[_Slice] = deque(maxlen=SLICES)

    def note_first_token(self, tenant: str, seconds: float, prompt_tokens: int, now: float) -> None:
        """A request got its first token, so long after it came."""
        current = self._current(now)
        current.first_token[bisect_left(BOUNDS_S, seconds)] += 1
        for work in (current.work, current.work_of(tenant)):
            work.requests += 1
            work.prompt_tokens += prompt_tokens

    def note_tokens(self, tenant: str, count: int, gap_s: float | None, now: float) -> None:
        """So many tokens of a sequence came, each so long after the one before it; None: they are its first."""
        current = self._current(now)
        current.work.generation_tokens += count
        current.work_of(tenant).generation_tokens += count
        if gap_s is not None:
            current.between_tokens[bisect_left(BOUNDS_S, gap_s)] += count

    def note_end(self, seconds: float, now: float) -> None:
        """A request is complete, so long after it came."""
        self._current(now).request[bisect_left(BOUNDS_S, seconds)] += 1

    def window_s(self, now: float) -> float:
        """How far back the percentiles look."""
        return self._covered_s(now, WINDOW_SLICES)

    def rates(self, now: float) -> Rates:
        """Of the last few seconds."""
        total = Work()
        for each in self._last(now, RATE_SLICES):
            total.add(each.work)
        return _rates(total, self._covered_s(now, RATE_SLICES))

    def first_token(self, now: float) -> Percentiles | None:
        """From arrival to the first token, over the window."""
        return _percentiles(each.first_token for each in self._last(now, WINDOW_SLICES))

    def between_tokens(self, now: float) -> Percentiles | None:
        """Between two tokens of a sequence, over the window."""
        return _percentiles(each.between_tokens for each in self._last(now, WINDOW_SLICES))

    def request(self, now: float) -> Percentiles | None:
        """From arrival to the last token, over the window."""
        return _percentiles(each.request for each in self._last(now, WINDOW_SLICES))

    def tenants(self, now: float) -> list[tuple[str | None, Rates]]:
        """Those with the most tokens over the window, the most first; None: all others together."""
        found: dict[str, Work] = {}
        others = Work()
        for each in self._last(now, WINDOW_SLICES):
            others.add(each.others)
            for name, work in each.tenants.items():
                found.setdefault(name, Work()).add(work)
        ranked = sorted(found.items(), key=lambda item: (-_tokens(item[1]), item[0]))
        for _, work in ranked[SHOWN_TENANTS_MAX:]:
            others.add(work)
        seconds = self._covered_s(now, WINDOW_SLICES)
        shown: list[tuple[str | None, Rates]] = [
            (name, _rates(work, seconds)) for name, work in ranked[:SHOWN_TENANTS_MAX]
        ]
        if others != Work():
            shown.append((None, _rates(others, seconds)))
        return shown

    def moments(self, now: float) -> list[Moment]:
        """The slices in which something happened, the oldest first."""
        return [
            Moment(
                now - (each.number + 1) * SLICE_S,
                each.work.prompt_tokens,
                each.work.generation_tokens,
                *each.percentiles(int(now // SLICE_S)),
            )
            for each in self._last(now, SLICES)
        ]

    def _current(self, now: float) -> _Slice:
        number = int(now // SLICE_S)
        if not self._slices or self._slices[-1].number != number:
            self._slices.append(_Slice(number))
        return self._slices[-1]

    def _last(self, now: float, count: int) -> Iterator[_Slice]:
        first = int(now // SLICE_S) - count + 1
        return (each for each in self._slices if each.number >= first)

    def _covered_s(self, now: float, count: int) -> float:
        """Time since the beginning of the oldest of so many slices, or since the start."""
        return now - max((now // SLICE_S - count + 1) * SLICE_S, min(self._began, now - SLICE_S))


def _bins() -> list[int]:
    return [0] * (len(BOUNDS_S) + 1)


def _tokens(work: Work) -> int:
    return work.prompt_tokens + work.generation_tokens


def _rates(work: Work, seconds: float) -> Rates:
    return Rates(work.requests / seconds, work.prompt_tokens / seconds, work.generation_tokens / seconds)


def _percentiles(histograms: Iterable[Sequence[int]]) -> Percentiles | None:
    counts = [sum(column) for column in zip(*histograms, strict=True)]
    total = sum(counts)
    if total == 0:
        return None
    return Percentiles(total, *(_value_at(counts, share * total) for share in (0.5, 0.9, 0.99)))


def _value_at(counts: Sequence[int], rank: float) -> float:
    """The value below which so many lie; inside a bin they are taken as evenly spread in the logarithm."""
    below = 0
    for i, count in enumerate(counts):
        if count and below + count >= rank:
            if i in (0, len(BOUNDS_S)):
                return BOUNDS_S[min(i, len(BOUNDS_S) - 1)]
            low, high = math.log(BOUNDS_S[i - 1]), math.log(BOUNDS_S[i])
            return math.exp(low + (high - low) * (rank - below) / count)
        below += count
    return BOUNDS_S[-1]
