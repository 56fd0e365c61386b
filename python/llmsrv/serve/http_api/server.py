"""The HTTP listener: uvicorn, on the daemon's own event loop and without its signal handlers."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from llmsrv.config import ServeConfig, parse_origins
from llmsrv.serve.http_api.connection import Connection
from llmsrv.serve.http_api.guard import guarded
from llmsrv.serve.http_api.routes import api
from llmsrv.serve.listener import Listener
from llmsrv.serve.security import Security

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

        REQUIRES: config.http_port is set.
        """
        super().__init__()
        self._security = security or Security(config)
        self._host, self._port = config.http_host, config.http_port or 0
        self._silent_s = config.stream_stall_timeout
        guard, origins = self._security.guard, parse_origins(config.cors_origins)
        settings = uvicorn.Config(
            api(self, guarded(guard, origins), vllm_names=config.metrics_vllm_names),
            http=Connection,  # on h11: no limit on headers in the other one
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

    async def start(self) -> int:
        """Listens and returns the port. Raises OSError when the address cannot be bound."""
        self._security.warn_of_exposure(self._host, self._port)
        bound = _bound(self._host, self._port, self._silent_s)
        self._task = asyncio.create_task(self._server.serve([bound]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.001)
        return int(bound.getsockname()[1])

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


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The daemon has handlers of its own."""
        yield


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
