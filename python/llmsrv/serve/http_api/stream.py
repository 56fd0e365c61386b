"""Sending what comes, and noticing that the client left.

uvicorn holds a send back while the connection's buffer is full: only that stream's generation waits, and what it gains
meanwhile is merged into one update.
"""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from typing import TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from llmsrv.errors import Code, ServiceError
from llmsrv.params import Update
from llmsrv.serve.http_api.answers import Answer, event
from llmsrv.serve.http_api.errors import error_body
from llmsrv.serve.http_api.prompts import Prompts, Updates

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed its connection before the answer was complete."""


async def unless_gone(receive: Receive, work: Coroutine[None, None, T]) -> T:
    """The work's result. Raises ClientGone, with the work cancelled, when the client leaves before it is done."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


class EventStream(Response):
    """Server-sent events. It has begun when the first update was there; it owns the prompts and closes them."""

    media_type = "text/event-stream"

    def __init__(self, answer: Answer, prompts: Prompts, first: tuple[int, Update], rest: Updates) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", "x-request-id": answer.id})
        del self.headers["content-length"]
        self._answer = answer
        self._prompts = prompts
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends everything."""
        try:
            with suppress(ClientGone):
                await unless_gone(receive, self._send_all(send))
        finally:
            self._prompts.close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with aclosing(self._rest) as rest:
                await self._send_update(send, *self._first)
                async for prompt, update in rest:
                    await self._send_update(send, prompt, update)
            last = self._answer.last_chunks()
        except ServiceError as error:
            last = event(error_body(error))
        except Exception:
            logger.exception("%s: a stream failed", self._answer.id)
            last = event(error_body(ServiceError(Code.INTERNAL, "internal error; see the server's log")))
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _send_update(self, send: Send, prompt: int, update: Update) -> None:
        if update.prompt is not None and update.prompt.logprobs:  # maybe many thousand records: built beside the loop
            chunks = await asyncio.to_thread(self._answer.chunks, prompt, update)
        else:
            chunks = self._answer.chunks(prompt, update)
        if chunks:
            await send({"type": "http.response.body", "body": chunks, "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
