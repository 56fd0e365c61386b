"""The generations of one body, one per prompt, numbered in its order: few of them are in flight at once.

What is wrong with any prompt is found before the first is answered. Where a body has more prompts than may be in
flight, each further one begins when one before it has ended; it waits for a place while the queue is full, so that a
body that was begun is not given up for that.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace

from llmsrv.errors import ServiceError
from llmsrv.generation import Generation, collect
from llmsrv.params import RequestOutput, Update
from llmsrv.serve.http_api import convert
from llmsrv.serve.http_api.convert import Asked
from llmsrv.serve.in_flight import in_flight_max, until_place_is_free
from llmsrv.service import GenerationService

Updates = AsyncGenerator[tuple[int, Update], None]


class Prompts:
    """Owns the generations. Call begin(), then one of updates() and outputs(), and always close()."""

    def __init__(self, service: GenerationService, asked: Asked, answer_id: str) -> None:
        """`answer_id`: what the requests are called, with a number if there are several."""
        self._service = service
        self._asked = asked
        self._answer_id = answer_id
        self._live: dict[int, Generation] = {}
        self._later: Iterator[int] = iter(())  # those that nobody has begun

    async def begin(self) -> None:
        """Submits as many as may be in flight. Raises ServiceError in the client's words, for the others, too."""
        count = len(self._asked.requests)
        width = in_flight_max([self._service], count)
        for number in range(width, count):
            found = await self._service.violations(self._asked.requests[number])
            if found:
                raise self._in_client_words(ServiceError.invalid(found), number)
        for number in range(width):
            await self._submit(number)
        self._later = iter(range(width, count))

    async def updates(self) -> Updates:
        """All updates as they come, each with the number of its prompt. Raises ServiceError."""
        if len(self._asked.requests) == 1:
            async for update in self._live[0]:
                yield 0, update
            return
        waiting = {asyncio.ensure_future(each.__anext__()): number for number, each in self._live.items()}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    number = waiting.pop(task)
                    update = task.result()
                    if update.usage is None:
                        waiting[asyncio.ensure_future(self._live[number].__anext__())] = number
                    else:
                        self._end(number)
                        following = next(self._later, None)
                        if following is not None:
                            waiting[asyncio.ensure_future(self._first_update(following))] = following
                    yield number, update
        finally:
            for task in waiting:
                task.cancel()

    async def outputs(self) -> list[RequestOutput]:
        """All answers, in the order of the prompts. Raises ServiceError."""
        found: dict[int, RequestOutput] = {}
        workers = [asyncio.ensure_future(self._collect(number, found)) for number in self._live]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
        return [found[number] for number in sorted(found)]

    def close(self) -> None:
        """Gives up what has not ended. Idempotent."""
        for number in list(self._live):
            self._end(number)

    async def _collect(self, number: int, found: dict[int, RequestOutput]) -> None:
        """This one's answer, and then those of others that nobody has begun."""
        found[number] = await collect(self._live[number])
        self._end(number)
        for following in self._later:
            await self._submit_later(following)
            found[following] = await collect(self._live[following])
            self._end(following)

    async def _first_update(self, number: int) -> Update:
        await self._submit_later(number)
        return await self._live[number].__anext__()

    async def _submit_later(self, number: int) -> None:
        await until_place_is_free(self._service)
        await self._submit(number)

    async def _submit(self, number: int) -> None:
        several = len(self._asked.requests) > 1
        request_id = f"{self._answer_id}-{number}" if several else self._answer_id
        try:
            request = replace(self._asked.requests[number], request_id=request_id)
            self._live[number] = await self._service.submit(request)
        except ServiceError as error:
            raise self._in_client_words(error, number) from None

    def _end(self, number: int) -> None:
        self._live.pop(number).close()

    def _in_client_words(self, error: ServiceError, number: int) -> ServiceError:
        return convert.in_client_words(error, self._asked.field_names, prompt_name(self._asked, number))


def prompt_name(asked: Asked, number: int) -> str:
    """What the client calls a prompt."""
    return "prompt" if len(asked.requests) == 1 else f"prompt[{number}]"
