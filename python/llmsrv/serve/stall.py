"""Ends streams whose reader takes nothing: HTTP/2 stops their handler at `yield`, maybe for ever.

grpc.aio accepts a status for a call whose message is still on its way; the client gets it when it reads again. The
handler is cancelled after that, and lets go of its generations in `finally`. One task looks at all streams, several
times before it ends one: a loop that was held up itself is no reason.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any

from grpc.aio import BaseError, InternalError

from llmsrv.errors import Code, ServiceError
from llmsrv.serve.status import abort, told

logger = logging.getLogger(__name__)

Context = Any  # grpc.aio.ServicerContext, whose type parameters the generated code does not have

LOOKS = 4  # per limit, at the same message
STATUS_S = 0.05  # what the status gets to be on its way before the handler ends


class WatchedStream:
    """One call, and whether its reader takes what it is given."""

    def __init__(self, context: Context, handler: "asyncio.Task[Any]") -> None:
        self.context = context
        self.handler = handler
        self.call = copy_context()  # of this call, for whoever ends it from another task
        self._messages = 0
        self._waits = False
        self._seen = (0, 0)  # a message that waited, and how often it was seen to

    async def give(self) -> None:
        """Before each message: from now on it waits for the reader.

        The headers leave before the first: beside a message that waits they would wait, too, and so would a status.
        """
        if self._messages == 0:
            try:
                await self.context.send_initial_metadata(())
            except InternalError:  # the client is gone, and this task is about to hear of it
                raise asyncio.CancelledError from None
        self._messages += 1
        self._waits = True

    def note_taken(self) -> None:
        """After each message: it waits no more."""
        self._waits = False

    def look(self) -> int:
        """How often the message that waits was seen to, this time included."""
        message, times = self._seen
        self._seen = (self._messages, (times if message == self._messages else 0) + self._waits)
        return self._seen[1]


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
        """Watches the stream that the current task handles."""
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
        while True:
            await asyncio.sleep(self._limit_s / LOOKS)
            for stream in [each for each in self._streams if each.look() > LOOKS]:
                self._streams.discard(stream)
                ending = asyncio.create_task(self._end(stream))
                self._endings.add(ending)
                ending.add_done_callback(self._endings.discard)

    async def _end(self, stream: WatchedStream) -> None:
        logger.warning("a stream was ended: its reader took nothing for %g s", self._limit_s)
        found = f"the reader took nothing for {self._limit_s:g} s (stream_stall_timeout)"
        status = stream.call.run(told, ServiceError(Code.RESOURCE_EXHAUSTED, found, reason="STREAM_STALLED"))
        aborting = asyncio.create_task(abort(stream.context, status))
        await asyncio.wait({aborting}, timeout=STATUS_S)
        stream.handler.cancel()
        with suppress(BaseError):  # as in a handler, when the status is sent, or when the client is gone
            await aborting
