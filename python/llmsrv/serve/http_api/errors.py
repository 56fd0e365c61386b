"""Failures in OpenAI's shape: {"error": {"message", "type", "param", "code"}}, with the HTTP status of errors.py."""

import math
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from llmsrv.errors import Code, ServiceError
from llmsrv.serve.call_errors import note_error

MESSAGE_CHARS_MAX = 4096
_TYPES = {
    Code.RESOURCE_EXHAUSTED: "rate_limit_error",
    Code.DEADLINE_EXCEEDED: "server_error",
    Code.INTERNAL: "server_error",
    Code.UNAVAILABLE: "server_error",
}
_CHALLENGES = {
    Code.UNAUTHENTICATED: 'Bearer realm="llmsrv"',
    Code.PERMISSION_DENIED: 'Bearer realm="llmsrv", error="insufficient_scope"',
}


# What HTTP's own refusals count as, beside those of the service.
_CODES = {404: Code.NOT_FOUND, 405: Code.UNIMPLEMENTED, 408: Code.DEADLINE_EXCEEDED}


class Refusal(Exception):
    """A request that HTTP itself refuses, before it means anything: its status, and a word for programs."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code


def error_body(error: ServiceError) -> dict[str, object]:
    """The body of an answer, or the data of an event in a stream that has begun. Call it once: it is counted."""
    note_error(error.code, error.reason)
    param = error.violations[0].field if error.violations else "model" if error.code is Code.NOT_FOUND else None
    return _body(error.message, _TYPES.get(error.code, "invalid_request_error"), param, error.reason.lower())


def error_response(error: ServiceError) -> Response:
    """The answer to a request that failed."""
    headers = {}
    if error.code in _CHALLENGES:
        headers["www-authenticate"] = _CHALLENGES[error.code]
    if error.retry_delay_s is not None:
        headers["retry-after"] = str(max(math.ceil(error.retry_delay_s), 1))
        headers["retry-after-ms"] = str(math.ceil(error.retry_delay_s * 1e3))
    return _response(error.http_status, error_body(error), headers)


def refusal_response(refusal: Refusal, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to a request that HTTP itself refuses."""
    note_error(_CODES.get(refusal.status, Code.INVALID_ARGUMENT), refusal.code)
    return _response(
        refusal.status, _body(refusal.message, "invalid_request_error", None, refusal.code), dict(headers or {})
    )


def _body(message: str, kind: str, param: str | None, code: str) -> dict[str, object]:
    shown = message if len(message) <= MESSAGE_CHARS_MAX else message[: MESSAGE_CHARS_MAX - 3] + "..."
    return {"error": {"message": shown, "type": kind, "param": param, "code": code}}


def _response(status: int, body: dict[str, object], headers: dict[str, str]) -> Response:
    return Response(msgspec.json.encode(body), status, headers, "application/json")
