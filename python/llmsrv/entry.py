"""Several models behind one entry: each request goes to the service of the model that it names.

An empty name means the first model. A name that is not served goes there, too: that service refuses the request, and
counts and logs that. Knows no transport. Thread rule: the event loop's, as the services.
"""

import asyncio
from collections.abc import Sequence

from llmsrv.errors import ServiceError, Violation
from llmsrv.generation import Generation
from llmsrv.params import ChatPrompt, GenerationRequest, TextPrompt
from llmsrv.service import GenerationService, State, Tokenized

# What the whole says when its parts differ: the first of these that any of them says.
_GRAVITY = (State.FAILED, State.STALLED, State.STARTING, State.DRAINING, State.DRAINED, State.SERVING)


class Entry:
    """The services of one daemon. What concerns no single model concerns all of them."""

    def __init__(self, services: Sequence[GenerationService]) -> None:
        """REQUIRES: there is one at least; their models' names differ."""
        self.services = tuple(services)
        self._by_name = {each.model.name: each for each in services}

    def of(self, model: str) -> GenerationService:
        """The service of the model of this name, or the first one, which refuses other names."""
        return self._by_name.get(model, self.services[0])

    def named(self, model: str) -> GenerationService:
        """The same, but other names are refused now: raises NOT_FOUND. Empty means the first."""
        service = self.of(model)
        service.check_model(model)
        return service

    # --- requests ---

    async def submit(self, request: GenerationRequest) -> Generation:
        """As GenerationService.submit(), by the request's model."""
        return await self.of(request.model).submit(request)

    async def violations(self, request: GenerationRequest) -> Sequence[Violation]:
        """What submit() would refuse in the request's fields; nothing is submitted."""
        return await self.of(request.model).violations(request)

    async def tokenize(
        self,
        prompt: TextPrompt | ChatPrompt,
        *,
        model: str = "",
        add_special_tokens: bool | None = None,
        offsets: bool = False,
    ) -> Tokenized:
        """As GenerationService.tokenize()."""
        return await self.of(model).tokenize(
            prompt, model=model, add_special_tokens=add_special_tokens, offsets=offsets
        )

    async def detokenize(self, token_ids: Sequence[int], *, model: str = "", skip_special_tokens: bool = True) -> str:
        """As GenerationService.detokenize()."""
        return await self.of(model).detokenize(token_ids, model=model, skip_special_tokens=skip_special_tokens)

    def count_refusal(self, error: ServiceError, model: str = "") -> None:
        """Counts a generation that its transport refused before it came here."""
        self.of(model).count_refusal(error)

    def abort_ids(self, request_ids: Sequence[str]) -> list[str]:
        """Ends requests early, of any model; the ids of those that were in flight."""
        found = {each for service in self.services for each in service.abort_ids(request_ids)}
        return [each for each in request_ids if each in found]

    def abort_all(self) -> list[str]:
        """Ends every request early; the ids of those that were in flight."""
        return [each for service in self.services for each in service.abort_all()]

    async def clear_prefix_cache(self, model: str = "") -> int:
        """Forgets all cached prefixes of a model, or of all; how many blocks became free. Raises NOT_FOUND."""
        services = (self.named(model),) if model else self.services
        return sum(await asyncio.gather(*(each.clear_prefix_cache() for each in services)))

    # --- state ---

    @property
    def state(self) -> State:
        """Whether requests for every model are taken, and why not."""
        return min((each.state for each in self.services), key=_GRAVITY.index)

    @property
    def in_flight(self) -> int:
        """Requests whose callers have not seen the end yet."""
        return sum(each.in_flight for each in self.services)

    def announce_drain(self) -> None:
        """As GenerationService.announce_drain()."""
        for each in self.services:
            each.announce_drain()

    async def drain(self, timeout_s: float | None, *, withdrawal_s: float = 0.0) -> None:
        """As GenerationService.drain(), for all of them at once."""
        await asyncio.gather(*(each.drain(timeout_s, withdrawal_s=withdrawal_s) for each in self.services))

    def resume(self) -> None:
        """Takes requests again. REQUIRES: no drain() is running. Raises ServiceError when an engine is gone; the others
        take requests all the same.
        """
        failures = []
        for each in self.services:
            try:
                each.resume()
            except ServiceError as error:
                failures.append(error)
        if failures:
            raise failures[0]
