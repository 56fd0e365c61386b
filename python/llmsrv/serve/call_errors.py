"""Counts the calls that were answered with an error, by what their clients were told: one count for both protocols.

A call finds the count in a context variable that is set where the call comes in, before anybody can refuse it; whatever
turns an error into an answer notes it. Codes and reasons are words of ours, so there are few; the limit holds anyway.
"""

from collections import Counter
from collections.abc import Mapping
from contextvars import ContextVar

from llmsrv.errors import Code
from llmsrv.origin import ORIGIN

KINDS_MAX = 256
OTHER = "OTHER"  # the reason of those that came when there were so many kinds already

Kind = tuple[str, str, str]  # protocol, code, reason


class CallErrors:
    """The counts of a daemon. Thread rule: the event loop's."""

    def __init__(self) -> None:
        self._counts: Counter[Kind] = Counter()

    def note(self, protocol: str, code: Code, reason: str) -> None:
        """One more."""
        kind = (protocol, code.name, reason.upper())
        known = kind in self._counts or len(self._counts) < KINDS_MAX
        self._counts[kind if known else (protocol, code.name, OTHER)] += 1

    @property
    def counts(self) -> Mapping[Kind, int]:
        """Since the start."""
        return self._counts


CALL_ERRORS: ContextVar[CallErrors | None] = ContextVar("llmsrv_call_errors", default=None)


def note_error(code: Code, reason: str) -> None:
    """The client of the current call is being told this, of the call or of an item of it. Call it once for each.

    That what it cancelled is cancelled is no error.
    """
    errors = CALL_ERRORS.get()
    if errors is not None and code is not Code.CANCELLED:
        errors.note(ORIGIN.get().protocol, code, reason)
