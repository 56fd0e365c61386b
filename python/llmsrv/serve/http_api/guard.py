"""The guard before HTTP's routes."""

from collections.abc import Sequence

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from llmsrv.caller import CALL
from llmsrv.errors import ServiceError
from llmsrv.serve.auth import Guard
from llmsrv.serve.http_api.errors import error_response


def guarded(guard: Guard, origins: Sequence[str]) -> list[Middleware]:
    """What stands before the routes. A browser asks without a key whether it may send one, so CORS comes first."""
    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "retry-after", "retry-after-ms"],
    )
    return [*([cors] if origins else []), Middleware(GuardMiddleware, guard)]


class GuardMiddleware:
    """Lets a request go on to its route, or answers it before its body was read."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The route runs in this task and in tasks made by it, so it finds the call that is set here."""
        headers = [value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"]
        try:
            CALL.set(self._guard.check(self._guard.path_access(scope["path"]), headers))
        except ServiceError as error:
            response = error_response(error)
        else:
            await self._app(scope, receive, send)
            return
        await response(scope, receive, send)
