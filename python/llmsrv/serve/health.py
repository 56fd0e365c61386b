"""grpc.health.v1 from the service's state: SERVING means that steps complete. Loading, stalled, draining and failed
are not.

One task looks at the state a few times a second; a change is told to every Watch at once.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio

from llmsrv.service import State

Status = Any  # of a service; the stubs have no name for its type, and no List at all
_ListResponse: Callable[..., Message] = getattr(health_pb2, "HealthListResponse")  # noqa: B009

logger = logging.getLogger(__name__)

POLL_S = 0.5
SERVICES = ("", "llmsrv.v1.InferenceService", "llmsrv.v1.ModelService", "llmsrv.v1.AdminService")


class HealthServicer(aio.HealthServicer):
    """The library's, with List, which it lacks."""

    def __init__(self) -> None:
        super().__init__()
        self._statuses: dict[str, Status] = {}

    async def set(self, service: str, status: Status) -> None:
        """From now on a service has this status; who watches it is told."""
        self._statuses[service] = status
        await super().set(service, status)

    async def List(self, request: Message, context: object) -> Message:
        """The status of every service."""
        statuses = {name: health_pb2.HealthCheckResponse(status=each) for name, each in self._statuses.items()}
        return _ListResponse(statuses=statuses)


class HealthReporter:
    """Owns the health servicer and keeps it equal to the state."""

    def __init__(self, state: Callable[[], State]) -> None:
        self.servicer = HealthServicer()
        self._state = state
        self._told: State | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Tells the state, and begins to follow it."""
        await self.tell()
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Stops following; the last told state stays."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def tell(self) -> None:
        """Tells the state now, if it changed."""
        state = self._state()
        if state is self._told:
            return
        if self._told is not None:
            logger.info("state: %s", state.value)
        self._told = state
        serving = state is State.SERVING
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in SERVICES:
            await self.servicer.set(name, status)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            await self.tell()
