"""The HTTP listener: uvicorn, on the daemon's own event loop and without its signal handlers."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import cast

import uvicorn

from llmsrv.config import ServeConfig, parse_origins
from llmsrv.serve.http_api.connection import Connection, LocalConnection
from llmsrv.serve.http_api.guard import guarded
from llmsrv.serve.http_api.routes import api
from llmsrv.serve.listener import Listener
from llmsrv.serve.security import Security
from llmsrv.serve.unix_socket import room_for_socket, socket_path

logger = logging.getLogger(__name__)

BACKLOG = 2048
HEADER_BYTES_MAX = 64 << 10
# Clients keep idle connections for a minute or less: the one who closes first should be the client.
KEEP_ALIVE_S = 75
KEEP_IDLE_MAX_S = 32767  # the kernel's
STOP_GRACE_S = 1


class HttpServer(Listener):
    """Listens from start() to stop()."""

    def __init__(self, config: ServeConfig, security: Security | None = None) -> None:
        """`security`: what it shares with other listeners. Raises ValueError without one, as Security() does.

        REQUIRES: config.serves_http.
        """
        self._security = security or Security(config)
        super().__init__(self._security.call_errors)
        self._host, self._port = config.http_host, config.http_port or 0
        self._path = socket_path(self._host)
        self._silent_s = config.stream_stall_timeout
        self.address = ""  # once it listens
        guard, origins = self._security.guard, parse_origins(config.cors_origins)
        settings = uvicorn.Config(
            api(self, guarded(guard, origins), vllm_names=config.metrics_vllm_names),
            # On h11: no limit on headers in the other one.
            http=self._connection(),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            h11_max_incomplete_event_size=HEADER_BYTES_MAX,
        )
        settings.load()
        if self._security.tls is not None:
            settings.ssl = self._security.tls.ssl_context()
        self._server = _Server(settings)
        self._task: asyncio.Task[None] | None = None

    def _connection(self) -> type[asyncio.Protocol]:
        """What uvicorn makes of each connection."""
        if self._path is None:
            return Connection
        return cast(type[asyncio.Protocol], partial(LocalConnection, stall_s=self._silent_s))  # it is only called

    async def start(self) -> int:
        """Listens and returns the port, 0 for a Unix socket. Raises OSError when the address cannot be bound."""
        self._security.warn_of_exposure(self._host, self._port)
        port = 0
        if self._path is None:
            bound = _bound(self._host, self._port, self._silent_s)
            port = int(bound.getsockname()[1])
            self.address = f"{'http' if self._security.tls is None else 'https'}://{self._host}:{port}"
        else:
            bound = _bound_path(self._path)
            self.address = self._host
        self._task = asyncio.create_task(self._server.serve([bound]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.001)
        return port

    async def stop(self) -> None:
        """Stops listening. Connections that are in use are cut after a second."""
        if self._task is None:
            return
        self._server.should_exit = True
        _, stopping = await asyncio.wait({self._task}, timeout=STOP_GRACE_S)
        if stopping:
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()  # their handlers see a client that left
            await self._task
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The daemon has handlers of its own."""
        yield


def _bound_path(path: Path) -> socket.socket:
    """A Unix socket; one that a dead daemon left is replaced."""
    bound = socket.socket(socket.AF_UNIX)
    try:
        with room_for_socket(path):
            bound.bind(str(path))
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise OSError(f"cannot listen on unix:{path}: {error}") from None
    return bound


def _bound(host: str, port: int, silent_s: float) -> socket.socket:
    """A socket that shares its port with nobody.

    A peer that is gone without a word, or that reads nothing of what waits for it, is cut off after `silent_s`.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not the port of one that listens
        # Connections inherit these.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, min(max(int(silent_s / 2), 1), KEEP_IDLE_MAX_S))
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(int(silent_s * 1000), 1))
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port}: {error}") from None
    return bound
