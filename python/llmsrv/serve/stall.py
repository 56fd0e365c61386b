"""Ends streams whose reader takes nothing: HTTP/2 stops their handler at `yield`, maybe for ever.

grpc.aio accepts a status for a call whose message is still on its way; the client gets it when it reads again. The
handler is cancelled after that, and lets go of its generations in `finally`. One task looks at all streams; a message
costs two assignments.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from grpc.aio import AbortError

from llmsrv.errors import Code, ServiceError
from llmsrv.serve.status import abort, status_of

logger = logging.getLogger(__name__)

Context = Any  # grpc.aio.ServicerContext, whose type parameters the generated code does not have

LOOKS = 4  # per limit
STATUS_S = 0.05  # what the status gets to be on its way before the handler ends


class WatchedStream:
    """One call, and since when its reader has taken nothing."""

    def __init__(self, context: Context, handler: "asyncio.Task[Any]") -> None:
        self.context = context
        self.handler = handler
        self.waits_since: float | None = None
        self._has_begun = False

    async def begin(self) -> None:
        """Before the first message: the headers leave alone. Together with a message that is held up they would be so,
        too, and a status cannot overtake them."""
        if not self._has_begun:
            self._has_begun = True
            await self.context.send_initial_metadata(())


class StallWatch:
    """Ends each watched stream that waits for its reader for longer than `limit_s`."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._streams: set[WatchedStream] = set()
        self._task: asyncio.Task[None] | None = None
        self._endings: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begins to look."""
        self._task = asyncio.create_task(self._look())

    async def stop(self) -> None:
        """Stops looking."""
        tasks = {*self._endings, *([self._task] if self._task is not None else [])}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @contextmanager
    def watched(self, context: Context) -> Iterator[WatchedStream]:
        """Watches the stream that the current task handles. It sets `waits_since` around each `yield`."""
        handler = asyncio.current_task()
        if handler is None:
            raise AssertionError("no task handles this call")
        stream = WatchedStream(context, handler)
        self._streams.add(stream)
        try:
            yield stream
        finally:
            self._streams.discard(stream)

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._limit_s / LOOKS)
            late = loop.time() - self._limit_s
            for stream in [each for each in self._streams if each.waits_since is not None and each.waits_since < late]:
                self._streams.discard(stream)
                ending = asyncio.create_task(self._end(stream))
                self._endings.add(ending)
                ending.add_done_callback(self._endings.discard)

    async def _end(self, stream: WatchedStream) -> None:
        logger.warning("a stream was ended: its reader took nothing for %g s", self._limit_s)
        found = f"the reader took nothing for {self._limit_s:g} s (stream_stall_timeout)"
        status = status_of(ServiceError(Code.RESOURCE_EXHAUSTED, found, reason="STREAM_STALLED"))
        aborting = asyncio.create_task(abort(stream.context, status))
        await asyncio.wait({aborting}, timeout=STATUS_S)
        stream.handler.cancel()
        with suppress(AbortError):  # as in a handler, when the status is sent
            await aborting
