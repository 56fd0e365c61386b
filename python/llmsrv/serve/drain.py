"""Drains: the one that an administrator begins and may take back, and the daemon's last one, which stays.

The state changes first, then health watchers are told, and only then is anything waited for.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from llmsrv.entry import Entry
from llmsrv.errors import Code, ServiceError
from llmsrv.service import State

PROGRESS_S = 0.1


class Drainer:
    """Owns the drain that runs, one at most. Event loop only."""

    def __init__(self, tell_health: Callable[[], Awaitable[None]], withdrawal_s: float) -> None:
        """`withdrawal_s`: how long requests are still taken after watchers were told."""
        self._tell_health = tell_health
        self._withdrawal_s = withdrawal_s
        self._task: asyncio.Task[None] | None = None
        self._finishing = False

    @property
    def finishing(self) -> bool:
        """Whether the daemon ends after this drain."""
        return self._finishing

    def begin(self, service: Entry, timeout_s: float | None) -> None:
        """Begins a drain; one that runs already gets the new limit. The daemon's own keeps its limit."""
        if not self._finishing:
            self._replace(service, timeout_s)

    async def resume(self, service: Entry) -> None:
        """Takes requests again. Raises ServiceError when the daemon is ending or its engine failed."""
        if self._finishing:
            raise ServiceError(Code.FAILED_PRECONDITION, "the daemon is shutting down", reason="SHUTTING_DOWN")
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})  # until then it may still change the state
            self._task = None
        service.resume()
        await self._tell_health()

    async def finish(self, service: Entry, timeout_s: float) -> None:
        """The daemon's last drain. Returns when it is done."""
        self._finishing = True
        await self._replace(service, timeout_s)

    def _replace(self, service: Entry, timeout_s: float | None) -> "asyncio.Task[None]":
        if self._task is not None:
            self._task.cancel()
        service.announce_drain()
        self._task = asyncio.create_task(self._drain(service, timeout_s))
        return self._task

    async def _drain(self, service: Entry, timeout_s: float | None) -> None:
        await self._tell_health()
        await service.drain(timeout_s, withdrawal_s=self._withdrawal_s)
        await self._tell_health()


async def progress(service: Entry) -> AsyncIterator[tuple[State, int]]:
    """State and requests in flight now and whenever they change, until the service is no longer draining."""
    told = None
    while True:
        now = (service.state, service.in_flight)
        if now != told:
            yield now
            told = now
        if now[0] is not State.DRAINING:
            return
        await asyncio.sleep(PROGRESS_S)
