"""BatchGenerate: many generations for one reader, each with an end of its own."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence

from llmsrv.entry import Entry
from llmsrv.errors import Code, ServiceError, Violation
from llmsrv.serve.calls import submitted, whole_answer
from llmsrv.serve.in_flight import in_flight_max, until_place_is_free
from llmsrv.serve.status import internal_error, item_status
from llmsrv.v1 import inference_pb2

logger = logging.getLogger(__name__)

ITEMS_MAX = 1024


class Batch:
    """The generations of one call. Always call close(); after it none of them holds anything.

    Few items are in flight at once, so that a batch leaves places in the queue, and at most as many answers wait for a
    reader that is slow: an item begins when an answer before it was taken and the queue is not full.
    """

    def __init__(
        self,
        service: Entry,
        requests: Sequence[inference_pb2.GenerateRequest],
        time_remaining: Callable[[], float | None],
    ) -> None:
        """`time_remaining`: of the call, in seconds. Raises INVALID_ARGUMENT for a batch of an impossible length."""
        if not 1 <= len(requests) <= ITEMS_MAX:
            found = f"holds {len(requests)}; must hold 1 to {ITEMS_MAX}"
            raise ServiceError.invalid([Violation("requests", found)])
        self._service = service
        self._requests = requests
        self._time_remaining = time_remaining
        self._repeated = _repeated_ids(requests)
        self._next = iter(range(len(requests)))
        self._answers: asyncio.Queue[inference_pb2.BatchGenerateResponse] = asyncio.Queue(1)
        width = in_flight_max({service.of(each.model) for each in requests}, len(requests))
        self._workers = [asyncio.create_task(self._work()) for _ in range(width)]

    async def answers(self) -> AsyncIterator[inference_pb2.BatchGenerateResponse]:
        """One per item, in the order in which they end."""
        for _ in range(len(self._requests)):
            yield await self._answers.get()

    def close(self) -> None:
        """Gives up what has not ended. Idempotent."""
        for worker in self._workers:
            worker.cancel()

    async def _work(self) -> None:
        begun = False
        for index in self._next:
            if begun:
                await until_place_is_free(self._service.of(self._requests[index].model))
            begun = True
            await self._answers.put(await self._answer(index))

    async def _answer(self, index: int) -> inference_pb2.BatchGenerateResponse:
        try:
            return inference_pb2.BatchGenerateResponse(request_index=index, response=await self._response(index))
        except ServiceError as error:
            failure = item_status(error)  # here: kept, the error would hold this frame, and that the request
        except Exception:  # one item must not hurt the others
            logger.exception("item %d of a batch failed", index)
            failure = item_status(internal_error())
        return inference_pb2.BatchGenerateResponse(request_index=index, error=failure)

    async def _response(self, index: int) -> inference_pb2.GenerateResponse:
        message = self._requests[index]
        if index in self._repeated:
            error = ServiceError(Code.ALREADY_EXISTS, f"an earlier item has the request_id {message.request_id!r}")
            self._service.count_refusal(error, message.model)
            raise error
        generation = await submitted(self._service, message, self._time_remaining())
        return await whole_answer(self._service, generation, message.output)


def _repeated_ids(requests: Sequence[inference_pb2.GenerateRequest]) -> set[int]:
    """Items whose id an earlier one has: refused whether or not that one is still in flight by then."""
    seen: set[str] = set()
    repeated = set()
    for index, request in enumerate(requests):
        if request.request_id in seen:
            repeated.add(index)
        elif request.request_id:
            seen.add(request.request_id)
    return repeated
