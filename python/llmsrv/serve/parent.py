"""Noticing that the process which started this one is gone, however it ended: its children get another parent.

Not the kernel's own signal for it (PR_SET_PDEATHSIG): that one comes when the thread ends that started the child.
"""

import asyncio
import os

POLL_S = 0.25


async def until_parent_ends() -> None:
    """Returns when the parent that this process had at the call is its parent no longer."""
    parent = os.getppid()
    while os.getppid() == parent:
        await asyncio.sleep(POLL_S)
