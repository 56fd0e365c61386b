"""The daemon's life: listen, load, serve, drain. One event loop; loading runs in a thread beside it.

start() ──> load() ──> SERVING ──signal──> drain ──> stop, exit 0
NOT_SERVING while loading                  NOT_SERVING; what runs gets --drain-timeout; a second signal ends at once
"""

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from llmsrv.config import ServeConfig
from llmsrv.flags import parse_settings
from llmsrv.serve.logs import STDERR, logging_to, report
from llmsrv.serve.parent import until_parent_ends
from llmsrv.serve.request_log import PROMPT_CHARS, log_request

if TYPE_CHECKING:
    from llmsrv.records import RequestRecord
    from llmsrv.serve.grpc_server import GrpcServer
    from llmsrv.serve.http_api.server import HttpServer
    from llmsrv.serve.security import Security
    from llmsrv.serve.tracing import Tracing
    from llmsrv.service import GenerationService


def main() -> None:
    """Entry point of `llmsrv-grpc`."""
    settings = parse_settings(
        ServeConfig,
        prog="llmsrv-grpc",
        description="Serve language models over gRPC, and with --http-port over HTTP, too.\n\n"
        "gRPC: llmsrv.v1, grpc.health.v1 and reflection. HTTP: what OpenAI's clients use, probes and metrics.\n"
        "Ctrl-C or SIGTERM finishes what runs, then exits.",
    )
    config, lines = settings.options, list(settings.notes)
    if config.permission_mode == "strict":
        from llmsrv.serve.permissions import confine

        try:
            config = confine(config, lines.append)  # before the log, whose writer is a thread
        except (ValueError, OSError) as error:
            with logging_to(STDERR, form=config.log_format, level=config.log_level):
                for line in (*lines, f"error: {error}"):
                    report(line)
            sys.exit(1)
    sys.exit(run(config, lines))


def run(config: ServeConfig, lines: Sequence[str] = ()) -> int:
    """Serves until a signal; the process's exit status. `lines`: what the operator is to read first."""
    import uvloop

    _return_large_blocks()
    gc.disable()  # until the model is loaded: a vocabulary is some 100,000 small objects, none of them garbage
    with logging_to(STDERR, form=config.log_format, level=config.log_level):
        for line in lines:
            report(line)
        return uvloop.run(_serve(config))


async def until_signal() -> None:
    """Returns at the first SIGTERM or SIGINT; a second one ends the process."""
    await _handle_signals().wait()


async def _serve(config: ServeConfig) -> int:
    signalled = _handle_signals()
    daemon = Daemon(config)
    orphaned = asyncio.Event()
    following = asyncio.create_task(_end_with_parent(signalled, orphaned)) if config.exit_with_parent else None
    try:
        await daemon.start()
        if not await _finishes_before(signalled, daemon.load()):
            report("stopped while loading")
            _exit_now(0)  # the loading thread cannot be interrupted
        await signalled.wait()
    except (ValueError, OSError, ImportError) as error:
        await daemon.stop()
        report(f"error: {error}")
        return 1
    await daemon.stop(drain_timeout_s=0.0 if orphaned.is_set() else None)
    if following is not None:
        following.cancel()
    return 0


async def _end_with_parent(signalled: asyncio.Event, orphaned: asyncio.Event) -> None:
    await until_parent_ends()
    report("the parent process ended: ending, too")
    if signalled.is_set():  # nobody waits for a drain
        _exit_now(0)
    orphaned.set()
    signalled.set()


async def _finishes_before(event: asyncio.Event, work: Coroutine[None, None, None]) -> bool:
    """Whether the work is done before the event; what it raises is raised here."""
    task, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        await task
    return task.done()


class Daemon:
    """A server and the models behind it, in the running event loop. Always call stop(), also when starting failed."""

    def __init__(self, config: ServeConfig, environment: Mapping[str, str] = os.environ) -> None:
        """`environment`: may hold keys."""
        self._config = config
        self._environment = environment
        self._began = time.monotonic()
        self._server: GrpcServer | None = None
        self._http: HttpServer | None = None
        self._services: list[GenerationService] = []
        self._tracing: Tracing | None = None
        self._weights = config.tenant_weights
        self.port = 0

    async def start(self) -> None:
        """Listens; health says NOT_SERVING.

        Raises OSError when the address cannot be bound, ValueError when keys or certificates cannot be used or an
        extra is missing.
        """
        from llmsrv.serve.grpc_server import GrpcServer
        from llmsrv.serve.security import Security

        if self._config.otlp_endpoint is not None:
            from llmsrv.serve.tracing import Tracing

            self._tracing = Tracing.to(self._config.otlp_endpoint)
        security = Security(self._config, self._environment)
        _reload_at_hangup(security)
        self._weights = {**security.guard.weights, **self._config.tenant_weights}
        self._server = GrpcServer(self._config, security)
        self.port = await self._server.start()
        report(f"listening on {self._server.address}")
        if self._server.admin_address is not None:
            report(f"listening for administrators on {self._server.admin_address}")
        if self._config.serves_http:
            from llmsrv.serve.http_api.server import HttpServer

            self._http = HttpServer(self._config, security)
            await self._http.start()
            local = " for HTTP" if self._config.http_port is None else ""
            report(f"listening{local} on {self._http.address}")

    async def load(self) -> None:
        """Loads the models; health says SERVING. Raises ValueError or OSError. REQUIRES: start() returned."""
        from llmsrv.engine import load_engines
        from llmsrv.service import GenerationService

        config = replace(self._config, tenant_weights=self._weights)
        models = await asyncio.to_thread(load_engines, config.apart(), report=report)
        names = [each.name for each in models]
        self._services = [GenerationService(each, served=names) for each in models]
        for each in self._services:
            each.record_ends(self._note_end, prompt_chars=PROMPT_CHARS if self._config.log_prompts else 0)
        gc.freeze()  # what was loaded stays: no later collection needs to look at it
        gc.enable()
        if self._config.permission_mode == "strict":
            from llmsrv.serve.permissions import seal

            seal(self._config, report)
        if self._http is not None:
            await self._http.serve(*self._services)
        if self._server is not None:
            await self._server.serve(*self._services)
            took = time.monotonic() - self._began
            deployment = f" ({self._config.env})" if self._config.env else ""
            report(f"serving {', '.join(names)} on {self._server.address}{deployment}, ready after {took:.2f} s")

    def _note_end(self, record: "RequestRecord") -> None:
        log_request(record, "" if self._tracing is None else self._tracing.note(record))

    async def stop(self, *, drain_timeout_s: float | None = None) -> None:
        """Drains, stops listening, stops the engine. Idempotent. The time is the configured one if it is not given."""
        server, self._server = self._server, None
        http, self._http = self._http, None
        services, self._services = self._services, []
        if services:
            report(f"draining: {sum(each.in_flight for each in services)} requests in flight")
            if server is not None:
                await server.drain(self._config.drain_timeout if drain_timeout_s is None else drain_timeout_s)
        for listener in (http, server):
            if listener is not None:
                await listener.stop()
        for service in services:
            await service.close()
        if self._tracing is not None:
            await self._tracing.close()
        if services:
            report("stopped")


def _handle_signals() -> asyncio.Event:
    """The event is set by the first signal; the second one ends the process. Called before anything is loaded."""
    signalled = asyncio.Event()

    def handle(number: int) -> None:
        if signalled.is_set():
            report(f"second {signal.Signals(number).name}: ending now")
            _exit_now(128 + number)
        signalled.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle, number)
    return signalled


def _reload_at_hangup(security: "Security") -> None:
    """SIGHUP reads keys and certificates again; where no file has any, it ends the process as it always did."""

    def reload() -> None:
        for line in security.reload():
            report(line)

    if security.is_reloadable:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)


def _return_large_blocks() -> None:
    """Keeps glibc from raising its threshold after the first large message, and with it the memory that it retains."""
    import ctypes

    m_mmap_threshold, threshold_bytes = -3, 256 << 10
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none and need none
    if mallopt is not None:
        mallopt(m_mmap_threshold, threshold_bytes)


def _exit_now(status: int) -> None:
    import logging

    sys.stderr.flush()
    logging.shutdown()
    os._exit(status)


if __name__ == "__main__":
    main()
