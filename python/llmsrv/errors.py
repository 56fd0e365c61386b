"""The one table of failures: core status code -> gRPC code -> HTTP status, and the exception that carries them.

Codes are gRPC's numbers everywhere, so that no layer translates twice; cpp/base/status.h has those that the core needs.
This module knows no transport: `serve/` turns a ServiceError into rich gRPC details.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum


class Code(IntEnum):
    """What became of a request. The numbers are gRPC's."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


# UNIMPLEMENTED is not 501: it is for a field of a request, and clients send a request again when its status is 5xx.
HTTP_STATUS: Mapping[Code, int] = {
    Code.OK: 200,
    Code.CANCELLED: 499,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.UNIMPLEMENTED: 400,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.UNAUTHENTICATED: 401,
}

# Machine-readable reason of a code where the place that raised it gave none.
DEFAULT_REASON: Mapping[Code, str] = {
    Code.CANCELLED: "CANCELLED",
    Code.INVALID_ARGUMENT: "INVALID_FIELD",
    Code.DEADLINE_EXCEEDED: "DEADLINE_PASSED",
    Code.NOT_FOUND: "MODEL_NOT_FOUND",
    Code.ALREADY_EXISTS: "REQUEST_ID_IN_USE",
    Code.PERMISSION_DENIED: "ADMIN_REQUIRED",
    Code.RESOURCE_EXHAUSTED: "QUEUE_FULL",
    Code.FAILED_PRECONDITION: "KV_CACHE_TOO_SMALL",
    Code.UNIMPLEMENTED: "NOT_IMPLEMENTED",
    Code.INTERNAL: "INTERNAL",
    Code.UNAVAILABLE: "ENGINE_UNAVAILABLE",
    Code.UNAUTHENTICATED: "INVALID_API_KEY",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """One field of a request that breaks a rule. `field` is its path in GenerateRequest, for example
    "sampling.top_p"."""

    field: str
    description: str


@dataclass(frozen=True, slots=True)
class Resource:
    """What was not found: its kind ("model") and the name that the client gave."""

    kind: str
    name: str


class ServiceError(Exception):
    """A request that failed, with everything that a client of any transport may be told. Never carries a traceback."""

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        violations: Sequence[Violation] = (),
        reason: str | None = None,
        metadata: Mapping[str, str] | None = None,
        resource: Resource | None = None,
        retry_delay_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.violations = tuple(violations)
        self.reason = reason if reason is not None else DEFAULT_REASON[code]
        self.metadata = dict(metadata or {})
        self.resource = resource
        self.retry_delay_s = retry_delay_s

    @classmethod
    def invalid(cls, violations: Sequence[Violation]) -> "ServiceError":
        """INVALID_ARGUMENT that names every violation. REQUIRES: at least one."""
        listed = "; ".join(f"{v.field}: {v.description}" for v in violations)
        return cls(Code.INVALID_ARGUMENT, listed, violations=violations)

    @classmethod
    def not_implemented(cls, fields: Sequence[str]) -> "ServiceError":
        """UNIMPLEMENTED for fields that this version knows and cannot honour. REQUIRES: at least one path."""
        violations = [Violation(field, "not implemented in this version") for field in fields]
        message = f"not implemented in this version: {', '.join(fields)}"
        return cls(Code.UNIMPLEMENTED, message, violations=violations, metadata={"fields": ",".join(fields)})

    @property
    def http_status(self) -> int:
        """The HTTP status of this failure."""
        return HTTP_STATUS[self.code]
