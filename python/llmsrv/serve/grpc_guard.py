"""The guard before gRPC's handlers."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from llmsrv.caller import CALL
from llmsrv.errors import ServiceError
from llmsrv.serve.auth import Guard
from llmsrv.serve.status import abort, internal_error, told

logger = logging.getLogger(__name__)

Handler = Any  # grpc.RpcMethodHandler, whose type parameters nobody here needs


class GuardInterceptor(grpc.aio.ServerInterceptor):
    """Lets a call go on to its handler, or answers it before anything of it was read."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]], details: grpc.HandlerCallDetails
    ) -> Handler:
        """grpc.aio runs this and the handler in one task, so the handler finds the call that is set here."""
        metadata = details.invocation_metadata or ()
        headers = [_text(value) for name, value in metadata if name == "authorization"]
        try:
            CALL.set(self._guard.check(self._guard.method_access(details.method), headers))
        except ServiceError as error:
            return _refusal(error)
        except Exception:
            logger.exception("the guard failed")
            return _refusal(internal_error())  # grpc.aio would show what was raised
        return await continuation(details)


def _refusal(error: ServiceError) -> Handler:
    """A handler of the one shape that fits every client: it neither reads nor writes."""
    status = told(error)

    async def refuse(_: object, context: Any) -> None:  # noqa: ANN401
        await abort(context, status)

    return grpc.stream_stream_rpc_method_handler(refuse)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
