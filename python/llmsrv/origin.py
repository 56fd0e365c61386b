"""Where a request came from: what a transport knows of a call, handed down to the service beside the request.

It is a context variable, since it is the same for all that one call does. The transports set it, `submit` reads it.
"""

import re
from contextvars import ContextVar
from dataclasses import dataclass

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(frozen=True, slots=True)
class TraceParent:
    """W3C trace context: the trace that a call belongs to, and the caller's span in it. Lower-case hex digits."""

    trace_id: str
    span_id: str
    flags: int

    @classmethod
    def parse(cls, header: str) -> "TraceParent | None":
        """The header `traceparent`, or None for one that the standard tells to ignore."""
        found = _TRACEPARENT.fullmatch(header)
        if found is None:
            return None
        version, trace_id, span_id, flags, more = found.groups()
        if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
            return None
        return cls(trace_id, span_id, int(flags, 16))


@dataclass(frozen=True, slots=True)
class Origin:
    """A call. Nothing in the engine looks at it."""

    protocol: str = ""  # "grpc", "http"; empty for a call in this process
    trace: TraceParent | None = None


ORIGIN: ContextVar[Origin] = ContextVar("llmsrv_origin", default=Origin())  # noqa: B039 - it is frozen
