"""The daemon's life: listen, load, serve, drain. One event loop; loading runs in a thread beside it.

start() ──> load() ──> SERVING ──signal──> drain ──> stop, exit 0
NOT_SERVING while loading                  NOT_SERVING; what runs gets --drain-timeout; a second signal ends at once
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable

from llmsrv.config import ServeConfig, flags_of


def main() -> None:
    """Entry point of `llmsrv-grpc`."""
    import typer

    def serve(**options: object) -> None:
        """Serve a language model over gRPC.

        Answers llmsrv.v1, grpc.health.v1 and reflection. Ctrl-C or SIGTERM finishes what runs, then exits.
        """
        try:
            config = ServeConfig(**options)  # type: ignore[arg-type]  # the flags are made of its fields
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        raise typer.Exit(run(config))

    serve.__signature__ = flags_of(ServeConfig)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(serve)
    app(prog_name="llmsrv-grpc")


def run(config: ServeConfig) -> int:
    """Serves until a signal; the process's exit status."""
    import logging

    import uvloop

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    return uvloop.run(_serve(config))


async def until_signal() -> None:
    """Returns at the first SIGTERM or SIGINT; a second one ends the process."""
    await _handle_signals().wait()


async def _serve(config: ServeConfig) -> int:
    signalled = _handle_signals()
    daemon = Daemon(config)
    try:
        await daemon.start()
        loading = asyncio.ensure_future(daemon.load())
        waiting = asyncio.ensure_future(signalled.wait())
        await asyncio.wait({loading, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            report("stopped while loading")
            _exit_now(0)  # the loading thread cannot be interrupted
        await loading
    except (ValueError, OSError, ImportError) as error:
        report(f"error: {error}")
        return 1
    await waiting
    await daemon.stop()
    return 0


class Daemon:
    """A server and the model behind it, in the running event loop."""

    def __init__(self, config: ServeConfig, *, tell: Callable[[str], None] | None = None) -> None:
        self._config = config
        self._tell = tell or report
        self._began = time.monotonic()
        self.port = 0

    async def start(self) -> None:
        """Listens; health says NOT_SERVING. Raises OSError when the address cannot be bound."""
        from llmsrv.serve.grpc_server import GrpcServer

        self._server = GrpcServer(self._config)
        self.port = await self._server.start()
        self._tell(f"listening on {self._config.host}:{self.port}")

    async def load(self) -> None:
        """Loads the model; health says SERVING. Raises ValueError or OSError."""
        from llmsrv.engine import load_engine
        from llmsrv.service import GenerationService

        model = await asyncio.to_thread(
            load_engine, self._config, report=self._tell, name=self._config.served_model_name
        )
        self._service = GenerationService(model)
        await self._server.serve(self._service)
        took = time.monotonic() - self._began
        self._tell(f"serving {model.name} on {self._config.host}:{self.port}, ready after {took:.2f} s")

    async def stop(self) -> None:
        """Drains, stops listening, stops the engine."""
        self._tell(f"draining: {self._service.in_flight} requests in flight")
        await self._server.drain(self._config.drain_timeout)
        await self._server.stop()
        await self._service.close()
        self._tell("stopped")


def report(line: str) -> None:
    """One line for the operator."""
    print(line, file=sys.stderr, flush=True)


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


def _exit_now(status: int) -> None:
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
