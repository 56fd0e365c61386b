"""GenerateSession: many generations over one stream, one message per flush for all that have news.

One wake-up for all outputs of a step: a generation with news notes itself, and the writer takes from all of them. A
reader that is slow finds the news of each merged.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial

from llmsrv.entry import Entry
from llmsrv.errors import Code, ServiceError, Violation
from llmsrv.generation import Generation
from llmsrv.serve import convert
from llmsrv.serve.calls import stream_part, submitted_stream
from llmsrv.serve.status import internal_error, item_status
from llmsrv.v1 import inference_pb2, types_pb2

logger = logging.getLogger(__name__)

IN_FLIGHT_MAX = 1024
FLUSH_ITEMS = 256  # at most in one message
FLUSH_BYTES = 4 << 20  # a message that has reached this takes no more items
# While so many refusals wait for the reader, or starts for the tokenizer, nothing more is read from it.
REFUSALS_MAX = 1024
STARTS_MAX = 16
RETRY_S = 1.0

Item = inference_pb2.GenerateSessionResponse.Item


class _Member:
    """One request of a session: being submitted, then a generation."""

    def __init__(self, asked: types_pb2.OutputOptions) -> None:
        self.asked = asked
        self.submission: asyncio.Task[None] | None = None
        self.generation: Generation | None = None

    def close(self) -> None:
        if self.generation is not None:
            self.generation.close()
        elif self.submission is not None:
            self.submission.cancel()


class Session:
    """Owns the generations of one call. Always call close(); after it none of them holds anything.

    Invariant: an id is in `_members` from its start until the item that ends it is made.
    """

    def __init__(
        self,
        service: Entry,
        requests: AsyncIterator[inference_pb2.GenerateSessionRequest],
        time_remaining: Callable[[], float | None],
    ) -> None:
        """`time_remaining`: of the call, in seconds."""
        self._service = service
        self._time_remaining = time_remaining
        self._members: dict[str, _Member] = {}
        self._ready: dict[str, None] = {}  # ids with news, in their order
        self._refusals: list[Item] = []
        self._news = asyncio.Event()
        self._starting = 0
        self._room = asyncio.Event()
        self._input = asyncio.create_task(self._read(requests))
        self._input.add_done_callback(lambda _: self._news.set())

    async def messages(self) -> AsyncIterator[inference_pb2.GenerateSessionResponse]:
        """Until the client has half-closed and everything has ended. Raises what reading from the client raises."""
        while not (self._input.done() and not self._members and not self._refusals):
            await self._news.wait()
            self._news.clear()
            while items := await self._flush():
                yield inference_pb2.GenerateSessionResponse(items=items)
        self._input.result()

    def close(self) -> None:
        """Gives up what has not ended. Idempotent."""
        self._input.cancel()
        for member in self._members.values():
            member.close()
        self._members.clear()
        self._ready.clear()

    # --- the client's side ---

    async def _read(self, requests: AsyncIterator[inference_pb2.GenerateSessionRequest]) -> None:
        async for message in requests:
            self._act(message)
            while len(self._refusals) >= REFUSALS_MAX or self._starting >= STARTS_MAX:
                self._room.clear()
                await self._room.wait()

    def _act(self, message: inference_pb2.GenerateSessionRequest) -> None:
        action = message.WhichOneof("action")
        request_id = message.start.request.request_id if action == "start" else message.cancel_request_id
        try:
            convert.refuse_unknown_here(message)
            if action is None:
                raise ServiceError.invalid([Violation("action", "one of its fields must be set")])
            if not request_id:
                field = "request_id" if action == "start" else "cancel_request_id"
                raise ServiceError.invalid([Violation(field, "must be set: it tells the requests of a session apart")])
            if action == "start":
                self._start(request_id, message.start)
            else:
                self._cancel(request_id)
        except ServiceError as error:
            if action == "start":
                self._service.count_refusal(error, message.start.request.model)
            self._refuse(request_id, error)

    def _start(self, request_id: str, message: inference_pb2.GenerateStreamRequest) -> None:
        if request_id in self._members:
            raise ServiceError(Code.ALREADY_EXISTS, f"request_id {request_id!r} is in flight in this session")
        if len(self._members) >= IN_FLIGHT_MAX:
            found = f"{IN_FLIGHT_MAX} requests of this session are in flight or not read to their end"
            raise ServiceError(Code.RESOURCE_EXHAUSTED, found, reason="SESSION_FULL", retry_delay_s=RETRY_S)
        member = self._members[request_id] = _Member(message.request.output)
        self._starting += 1
        member.submission = asyncio.create_task(self._submit(request_id, member, message))
        member.submission.add_done_callback(self._note_submission)

    def _cancel(self, request_id: str) -> None:
        """An id that is not in flight may have ended a moment ago: nothing is left to do then."""
        member = self._members.pop(request_id, None)
        if member is not None:
            self._ready.pop(request_id, None)
            member.close()
            self._refuse(request_id, ServiceError(Code.CANCELLED, "cancelled in the session"))

    async def _submit(self, request_id: str, member: _Member, message: inference_pb2.GenerateStreamRequest) -> None:
        try:
            member.generation = await submitted_stream(self._service, message, self._time_remaining())
        except ServiceError as error:
            self._refuse(request_id, error)
        except Exception:  # one request must not hurt the others
            logger.exception("a request of a session failed")
            self._refuse(request_id, internal_error())
        else:
            member.generation.listen(partial(self._note, request_id))
            return
        del self._members[request_id]

    def _note_submission(self, _: object) -> None:
        self._starting -= 1
        self._room.set()

    # --- the server's side ---

    def _note(self, request_id: str) -> None:
        self._ready[request_id] = None
        self._news.set()

    def _refuse(self, request_id: str, error: ServiceError) -> None:
        self._refusals.append(Item(request_id=request_id, error=item_status(error)))
        self._news.set()

    async def _flush(self) -> list[Item]:
        """What has news, up to the size of one message."""
        items, self._refusals = self._refusals[:FLUSH_ITEMS], self._refusals[FLUSH_ITEMS:]
        self._room.set()
        size = 0
        while self._ready and len(items) < FLUSH_ITEMS and size < FLUSH_BYTES:
            request_id = next(iter(self._ready))
            del self._ready[request_id]
            item = await self._item(request_id, self._members[request_id])
            size += item.ByteSize()
            items.append(item)
        return items

    async def _item(self, request_id: str, member: _Member) -> Item:
        generation = member.generation
        if generation is None:
            raise AssertionError(f"{request_id} has news, but no generation")
        try:
            update = generation.take()
            if update.usage is not None:
                self._end(request_id, generation)
            elif generation.has_news:
                self._note(request_id)  # its error comes after what was delivered before
            return Item(
                request_id=request_id, response=await stream_part(self._service, generation, update, member.asked)
            )
        except ServiceError as error:
            failure = item_status(error)
        except Exception:  # one request must not hurt the others
            logger.exception("a request of a session failed")
            failure = item_status(internal_error())
        self._end(request_id, generation)
        return Item(request_id=request_id, error=failure)

    def _end(self, request_id: str, generation: Generation) -> None:
        generation.close()
        self._members.pop(request_id, None)
        self._ready.pop(request_id, None)
