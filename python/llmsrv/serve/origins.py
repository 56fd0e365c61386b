"""Says of each call how it came, which trace it belongs to and who counts its failure: an interceptor for gRPC, a
middleware for HTTP.

Both run in the task that runs the handler, so that what they set is what `submit` finds, and nobody else.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from starlette.types import ASGIApp, Receive, Scope, Send

from llmsrv.errors import Code
from llmsrv.origin import ORIGIN, Origin, TraceParent
from llmsrv.serve.call_errors import CALL_ERRORS, CallErrors, note_error

TRACEPARENT = "traceparent"
_GRPC, _HTTP = Origin("grpc"), Origin("http")


class GrpcOrigin(grpc.aio.ServerInterceptor):
    """For every RPC."""

    def __init__(self, errors: CallErrors) -> None:
        self._errors = errors

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:  # noqa: ANN401
        """Looks at the metadata and passes the call on."""
        CALL_ERRORS.set(self._errors)
        for key, value in handler_call_details.invocation_metadata:
            if key == TRACEPARENT and isinstance(value, str):
                ORIGIN.set(Origin("grpc", TraceParent.parse(value)))
                break
        else:
            ORIGIN.set(_GRPC)
        handler = await continuation(handler_call_details)
        if handler is None:  # gRPC itself says so
            note_error(Code.UNIMPLEMENTED, "NO_SUCH_RPC")
        return handler


class HttpOrigin:
    """For every request."""

    def __init__(self, app: ASGIApp, errors: CallErrors) -> None:
        self._app = app
        self._errors = errors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Looks at the headers and passes the request on."""
        if scope["type"] == "http":
            found = [value for name, value in scope["headers"] if name == TRACEPARENT.encode()]
            # Two of them are none: nobody can say which one is right.
            trace = TraceParent.parse(found[0].decode("latin-1")) if len(found) == 1 else None
            CALL_ERRORS.set(self._errors)
            ORIGIN.set(_HTTP if trace is None else Origin("http", trace))
        await self._app(scope, receive, send)
