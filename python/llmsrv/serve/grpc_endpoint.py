"""One address that gRPC listens on, and the services there: the public one, and the administrators' where it is apart.

Thread rule: the event loop's. All of a daemon's endpoints share the guard, the certificates and the loop.
"""

from collections.abc import Callable
from typing import Any

import grpc.aio
from grpc_reflection.v1alpha import reflection

from llmsrv.config import ServeConfig
from llmsrv.serve.call_errors import CallErrors
from llmsrv.serve.channelz import add_channelz
from llmsrv.serve.grpc_guard import GuardInterceptor
from llmsrv.serve.origins import GrpcOrigin
from llmsrv.serve.security import Security
from llmsrv.serve.unix_socket import room_for_socket, socket_path

MAX_MESSAGE_BYTES = 64 << 20


class Endpoint:
    """A gRPC server: made, given its services, bound, started, stopped, in this order."""

    def __init__(
        self, host: str, port: int, config: ServeConfig, security: Security, errors: CallErrors, *, admin: bool = False
    ) -> None:
        """`admin`: nothing on it is for users. `errors`: what counts what its callers are refused."""
        self._host, self._port, self._is_for_admins = host, port, admin
        self._security = security
        self._names = [reflection.SERVICE_NAME]
        self.address = host if socket_path(host) is not None else f"{host}:{port}"
        guards = [GuardInterceptor(security.guard)] if security.guard.guards else []
        self._server = grpc.aio.server(interceptors=[GrpcOrigin(errors), *guards], options=_options(config))

    def add(self, described: Any, register: Callable[[Any, Any], None], servicer: object) -> None:  # noqa: ANN401
        """Serves the services of a generated module by what its twin registers."""
        register(servicer, self._server)
        self._names += [each.full_name for each in described.DESCRIPTOR.services_by_name.values()]

    def add_channelz(self) -> None:
        """Serves grpc.channelz.v1. Raises ValueError where its package is not installed."""
        self._names.append(add_channelz(self._server))

    def add_reflection(self) -> None:
        """Tells of all services that were added before."""
        reflection.enable_server_reflection(self._names, self._server)

    def bind(self) -> int:
        """Takes the address and returns the port, which says nothing on a Unix socket. Raises OSError if it cannot."""
        self._security.warn_of_exposure(self._host, self._port, for_admins=self._is_for_admins)
        path = socket_path(self._host)
        try:
            with room_for_socket(path):
                port = self._security.add_grpc_port(self._server, self.address)
        except (RuntimeError, OSError) as error:
            raise OSError(f"cannot listen on {self.address}: {error}") from None
        if path is None:
            self.address = f"{self._host}:{port}"
        return port

    async def start(self) -> None:
        """Takes calls."""
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Stops listening. What is open after the grace is cut."""
        await self._server.stop(grace_s)


def _options(config: ServeConfig) -> list[tuple[str, int]]:
    return [
        # Two servers on one port would share connections by chance: the second one must fail to start.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        # Clients may ping while a long prefill sends nothing; without this they would be cut off for it.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _ms(config.grpc_min_ping_interval)),
        ("grpc.keepalive_time_ms", _ms(config.grpc_keepalive_time)),
        ("grpc.keepalive_timeout_ms", _ms(config.grpc_keepalive_timeout)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
