"""Tells the operator of calls that the guard refuses: a line a minute at most, however many there are."""

import logging
import time
from collections import Counter

from llmsrv.caller import Clock

logger = logging.getLogger(__name__)

EVERY_S = 60.0


class RefusalLog:
    """Counts by reason; the first one is told at once, later ones together."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._untold: Counter[str] = Counter()
        self._told_at: float | None = None

    def note(self, reason: str) -> None:
        """One more."""
        self._untold[reason] += 1
        now = self._clock()
        if self._told_at is None or now - self._told_at >= EVERY_S:
            listed = ", ".join(f"{count} {each}" for each, count in sorted(self._untold.items()))
            logger.warning("refused calls: %s", listed)
            self._untold.clear()
            self._told_at = now
