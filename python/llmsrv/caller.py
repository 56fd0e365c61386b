"""Who a request belongs to, and what they may still use.

A transport says whose call it serves by setting `CALL`; the service asks it before it accepts a generation. So whatever
a transport offers, a limit cannot be passed by. No call is set where the server knows nobody: in the LLM class, and
in a daemon without keys.

A limit per minute is a bucket that holds a minute's worth and is filled evenly. Tokens are taken as they are computed,
so the bucket may be overdrawn by what ran at that moment; the next request waits until that is made good.

Thread rule: the event loop's.
"""

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from llmsrv.errors import Code, ServiceError

STREAM_RETRY_S = 1.0  # nobody knows when one of them ends

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one caller may use. None: as much as there is."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # of prompts and of what is generated
    max_concurrent_streams: int | None = None  # generations at once, streamed or not


class Caller:
    """One key's owner. The name is the tenant of the policy "fair", and all that a log may show."""

    def __init__(
        self, name: str, limits: Limits, clock: Clock = time.monotonic, *, shares_prefixes: bool = False
    ) -> None:
        """`shares_prefixes`: may find what others have cached, and they what this one has."""
        self.name = name
        self._shares_prefixes = shares_prefixes
        self._clock = clock
        self._live: set[Admission] = set()
        self._is_revoked = False
        self.set_limits(limits)

    def set_limits(self, limits: Limits) -> None:
        """Begins with full buckets; what runs is kept in mind."""
        self._limits = limits
        now = self._clock()
        self._requests = None if limits.requests_per_minute is None else _Bucket(limits.requests_per_minute, now)
        self._tokens = None if limits.tokens_per_minute is None else _Bucket(limits.tokens_per_minute, now)

    @property
    def limits(self) -> Limits:
        """What this caller may use."""
        return self._limits

    @property
    def running(self) -> int:
        """Generations that have been admitted and have not ended."""
        return len(self._live)

    def revoke(self) -> None:
        """The key is not valid any more: what runs goes on, also in calls that stay open, and nothing new begins."""
        self._is_revoked = True

    def cache_salt(self, salt: str) -> str:
        """Within which prefixes are shared, for a request with this salt. No two callers have one in common."""
        return salt if self._shares_prefixes else f"{self.name}/{salt}"  # a key's name has no slash

    def take_request(self) -> None:
        """Takes one of the requests. Raises RESOURCE_EXHAUSTED when none is left."""
        if self._requests is None:
            return
        now = self._clock()
        wait_s = self._requests.seconds_until_one(now)
        if wait_s > 0:
            limit = self._limits.requests_per_minute
            raise self._exhausted("REQUEST_RATE_EXCEEDED", f"{limit} requests per minute", limit, wait_s)
        self._requests.take(1, now)

    def admit(self) -> "Admission":
        """A generation may begin. Raises RESOURCE_EXHAUSTED when too many run or too many tokens were used.

        And UNAUTHENTICATED in a call that was open when its key was revoked.
        """
        if self._is_revoked:
            raise ServiceError(Code.UNAUTHENTICATED, f"the key {self.name!r} was revoked", reason="REVOKED_API_KEY")
        limit = self._limits.max_concurrent_streams
        if limit is not None and len(self._live) >= limit:
            raise self._exhausted("TOO_MANY_STREAMS", f"{limit} generations at once", limit, STREAM_RETRY_S)
        self._settle()
        wait_s = 0.0 if self._tokens is None else self._tokens.seconds_until_one(self._clock())
        if wait_s > 0:
            limit = self._limits.tokens_per_minute
            raise self._exhausted("TOKEN_RATE_EXCEEDED", f"{limit} tokens per minute", limit, wait_s)
        admission = Admission(self)
        self._live.add(admission)
        return admission

    def _settle(self) -> None:
        """Takes what the running generations have used since the last look."""
        if self._tokens is not None:
            for admission in self._live:
                self._tokens.take(admission.unpaid(), self._clock())

    def _ended(self, admission: "Admission") -> None:
        if admission in self._live:
            self._settle()
            self._live.remove(admission)

    def _exhausted(self, reason: str, what: str, limit: int | None, wait_s: float) -> ServiceError:
        return ServiceError(
            Code.RESOURCE_EXHAUSTED,
            f"the key {self.name!r} is limited to {what}",
            reason=reason,
            metadata={"key": self.name, "limit": str(limit)},
            retry_delay_s=wait_s,
        )


class Admission:
    """A generation that was let in, until end()."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._used: Callable[[], int] | None = None
        self._paid = 0

    def measure(self, used: Callable[[], int]) -> None:
        """`used()`: tokens of the generation so far. Called until end()."""
        self._used = used

    def unpaid(self) -> int:
        """Tokens since the last call."""
        used = 0 if self._used is None else self._used()
        unpaid, self._paid = used - self._paid, used
        return unpaid

    def end(self) -> None:
        """The generation uses nothing any more. Idempotent."""
        self._caller._ended(self)
        self._used = None


class Call:
    """One RPC or HTTP request. The request that it is covers one generation; each further one takes another."""

    def __init__(self, caller: Caller) -> None:
        """Raises RESOURCE_EXHAUSTED when the caller has no request left."""
        self.caller = caller
        caller.take_request()
        self._covered = True

    def admit(self) -> Admission:
        """A generation may begin. Raises RESOURCE_EXHAUSTED."""
        if not self._covered:
            self.caller.take_request()
        self._covered = False
        return self.caller.admit()


CALL: ContextVar[Call | None] = ContextVar("call", default=None)


class _Bucket:
    """A minute's worth of something, filled evenly; it may be overdrawn."""

    def __init__(self, per_minute: int, now: float) -> None:
        self._full = float(per_minute)
        self._level = self._full
        self._since = now

    def seconds_until_one(self, now: float) -> float:
        """When one unit is there; 0 if it is there now."""
        self._fill(now)
        missing = 1.0 - self._level
        return 0.0 if missing <= 1e-9 else missing * 60.0 / self._full

    def take(self, amount: int, now: float) -> None:
        """Takes so much, whether it is there or not."""
        self._fill(now)
        self._level -= amount

    def _fill(self, now: float) -> None:
        self._level = min(self._full, self._level + (now - self._since) * self._full / 60.0)
        self._since = now
