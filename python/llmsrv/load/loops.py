"""Who waits for whom: nobody (open loop), or each client for its own answer (closed loop)."""

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

from llmsrv.load.figures import Sample
from llmsrv.load.jobs import Job


class Client(Protocol):
    """Sends requests to one server."""

    async def run(self, index: int, job: Job, planned: float) -> Sample:
        """The job, with the prompt of its index. Failures are in the sample."""

    async def close(self) -> None:
        """Closes its connections."""


class Observer(Protocol):
    """Is told of each request that is done."""

    def note(self, sample: Sample) -> None:
        """One more."""


async def closed_loop(
    client: Client, jobs: Sequence[Job], concurrency: int, progress: Observer, *, first_index: int = 0
) -> list[Sample]:
    """`concurrency` clients that share the jobs; each sends its next one when it has its answer."""
    waiting = iter(enumerate(jobs, first_index))
    samples = []

    async def one_client() -> None:
        for index, job in waiting:
            sample = await client.run(index, job, time.perf_counter())
            samples.append(sample)
            progress.note(sample)

    await asyncio.gather(*(one_client() for _ in range(concurrency)))
    return samples


async def open_loop(client: Client, jobs: Sequence[Job], progress: Observer) -> list[Sample]:
    """Each job at its time, however many are under way: a slow server does not slow its clients down."""
    began = time.perf_counter()

    async def send(index: int, job: Job) -> Sample:
        planned = began + job.at_s
        await asyncio.sleep(max(planned - time.perf_counter(), 0.0))
        sample = await client.run(index, job, planned)
        progress.note(sample)
        return sample

    return await asyncio.gather(*(send(index, job) for index, job in enumerate(jobs)))
