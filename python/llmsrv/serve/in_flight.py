"""How many requests of one call are in flight at once: a call with very many leaves places for everybody else.

Used by BatchGenerate and by HTTP bodies with several prompts.
"""

import asyncio
from collections.abc import Collection

from llmsrv.caller import CALL
from llmsrv.service import GenerationService

LOOK_S = 0.1


def in_flight_max(services: Collection[GenerationService], requests: int) -> int:
    """Of so many requests to these: enough that none that runs has to wait for the next, half of the free places at
    most, and within what the caller may."""
    call = CALL.get()
    own = None if call is None else call.caller.limits.max_concurrent_streams
    most = min(min(2 * each.model.config.max_num_seqs, each.free_places // 2) for each in services)
    return max(min(most, requests if own is None else own, requests), 1)


async def until_place_is_free(service: GenerationService) -> None:
    """Waits while the queue is full: for a later request of a call whose earlier ones are done."""
    while service.free_places == 0:
        await asyncio.sleep(LOOK_S)
