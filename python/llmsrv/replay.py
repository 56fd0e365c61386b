"""Makes the decisions of a recorded run again, without a model, and compares them with those of the record.

The record is the file of `trace_steps`; its format stands in cpp/engine/step_trace.h. It is read line by line: a replay
holds what the scheduler holds, however long the record is.
"""

import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from llmsrv import _core
from llmsrv.weights.progress import ProgressCallback, no_progress, show_progress

LINE_BYTES_MAX = 64 << 20  # a prompt of millions of tokens; what is longer is no record
PROGRESS_BYTES = 32 << 20  # a record of this size takes some seconds
ANY_TOKEN = 0  # stands for a token that the recorded run never drew
PLANS_MAX = 2  # made and not committed


class RecordError(ValueError):
    """A file that is no record of steps, or not a whole one."""


class CutOffError(RecordError):
    """A record whose last line is not whole, because its writer was stopped or still writes."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A decision that is not the recorded one: field -> (recorded, now)."""

    step: int
    line: int
    fields: Mapping[str, tuple[object, object]]

    def __str__(self) -> str:
        lines = [f"step {self.step}, line {self.line}: this is not the recorded decision"]
        for name, (recorded, now) in self.fields.items():
            lines += [f"  {name}:", f"    recorded: {json.dumps(recorded)}", f"    now:      {json.dumps(now)}"]
        return "\n".join(lines)


class _Uncommitted(NamedTuple):
    """The sequences that draw a token in a recorded plan, and in the one made now. None: that plan is empty."""

    rows: list[int] | None
    rows_now: list[int] | None


class Replay:
    """A scheduler that is told what a recorded one was told. Events go in one by one, and differences come out."""

    def __init__(self) -> None:
        self.steps = 0  # plans that are not empty
        self.sequences = 0
        self.preemptions = 0  # of both kinds
        self.swaps = 0
        self.differences = 0
        self._scheduler: _core.Scheduler | None = None
        self._uncommitted: deque[_Uncommitted] = deque()  # the oldest first; two at most that the record commits
        # After a difference a sequence may draw its tokens in other steps than it did: those that are to come.
        self._drawn: dict[int, deque[int]] = {}

    def apply(self, kind: str, value: Any) -> Mapping[str, tuple[object, object]]:  # noqa: ANN401
        """Applies one event; what differs. Raises ValueError, TypeError, LookupError or RuntimeError for nonsense."""
        if self._scheduler is None:
            if kind != "limits":
                raise ValueError("a record begins with the limits of its scheduler")
            self._scheduler = _core.Scheduler(**value)
            return {}
        if kind == "add":
            self._scheduler.add(**value)
            self.sequences += 1
        elif kind == "remove":
            self._remove(self._scheduler, value)
        elif kind == "costs":
            self._scheduler.set_costs(**value)
        elif kind == "commit":
            self._commit(self._scheduler, value)
        elif kind == "plan":
            return self._noted(self._plan(self._scheduler, value))
        elif kind == "clear_prefix_cache":
            return self._noted({kind: (value, self._scheduler.clear_prefix_cache())})
        else:
            raise ValueError(f"there is no event {kind!r}")
        return {}

    def summary(self) -> str:
        """What was replayed, in one line."""
        counts = {
            "steps": self.steps,
            "sequences": self.sequences,
            "preemptions": self.preemptions,
            "swaps": self.swaps,
        }
        return ", ".join(f"{count:,} {name}" for name, count in counts.items())

    def _noted(self, fields: Mapping[str, tuple[object, object]]) -> Mapping[str, tuple[object, object]]:
        differing = {name: pair for name, pair in fields.items() if pair[0] != pair[1]}
        self.differences += bool(differing)
        return differing

    def _plan(self, scheduler: _core.Scheduler, recorded: dict[str, Any]) -> dict[str, tuple[object, object]]:
        self._commit_what_was_not_recorded(scheduler)
        if len(self._uncommitted) == PLANS_MAX:
            raise ValueError("two plans before it were never committed")
        now = _as_recorded(scheduler.plan())
        if recorded.keys() != now.keys():
            raise ValueError(f"a plan has the fields {', '.join(now)}")
        if recorded["ranges"] or now["ranges"]:
            self._uncommitted.append(_Uncommitted(_sampling(recorded["ranges"]), _sampling(now["ranges"])))
        self.steps += bool(recorded["ranges"])
        self.preemptions += len(recorded["preempted"]) + len(recorded["swapped"])
        self.swaps += len(recorded["swapped"])
        return {name: (recorded[name], now[name]) for name in now}

    def _commit(self, scheduler: _core.Scheduler, tokens: Sequence[int]) -> None:
        self._commit_what_was_not_recorded(scheduler)
        if not self._uncommitted:
            raise ValueError("it belongs to no plan")
        rows = self._uncommitted[0].rows or []
        if len(rows) != len(tokens):
            raise ValueError(f"needs {len(rows)} tokens")
        rows_now = self._uncommitted.popleft().rows_now
        if self.differences == 0:
            scheduler.commit(tokens)
            return
        for sequence, token in zip(rows, tokens, strict=True):
            self._drawn.setdefault(sequence, deque()).append(token)
        self._commit_now(scheduler, rows_now)

    def _commit_what_was_not_recorded(self, scheduler: _core.Scheduler) -> None:
        """Plans where the record has an empty one: no event will commit them."""
        while self._uncommitted and self._uncommitted[0].rows is None:
            self._commit_now(scheduler, self._uncommitted.popleft().rows_now)

    def _commit_now(self, scheduler: _core.Scheduler, rows_now: list[int] | None) -> None:
        if rows_now is None:
            return
        for sequence, _, _, reason in scheduler.commit([self._next_token(sequence) for sequence in rows_now]):
            if reason is not None:
                self._drawn.pop(sequence, None)

    def _next_token(self, sequence: int) -> int:
        drawn = self._drawn.get(sequence)
        return drawn.popleft() if drawn else ANY_TOKEN

    def _remove(self, scheduler: _core.Scheduler, sequence: int) -> None:
        self._drawn.pop(sequence, None)
        # After a difference it may have ended earlier.
        if not scheduler.remove(sequence) and self.differences == 0:
            raise ValueError(f"there is no sequence {sequence}")


def replay_file(path: Path, *, keep_going: bool = False, report: Callable[[str], None]) -> bool:
    """Replays a record and reports what came of it. Whether all decisions are the same.

    Stops at the first difference, or with `keep_going` counts them. Raises OSError, and RecordError with the number of
    the line that is not as it should be.
    """
    replay = Replay()
    with path.open("rb") as file, _progress(file) as progress:
        try:
            for number, kind, value in _events(file, progress):
                fields = _apply(replay, number, kind, value)
                if fields and replay.differences == 1:
                    report(str(Difference(replay.steps, number, fields)))
                if fields and not keep_going:
                    report(f"until here: {replay.summary()}")
                    return False
        except CutOffError:
            report(f"until there: {replay.summary()}, {replay.differences:,} decisions differ")
            raise
    report(replay.summary())
    if replay.differences:
        report(f"{replay.differences:,} decisions differ, counted from the first one on")
        return False
    report(f"all {replay.steps:,} plans are the same")
    return True


def _events(file: BinaryIO, progress: ProgressCallback) -> Iterator[tuple[int, str, Any]]:
    """Number of the line, kind and value of each event."""
    size, done, number = os.fstat(file.fileno()).st_size, 0, 0
    while line := file.readline(LINE_BYTES_MAX):
        number += 1
        try:
            ((kind, value),) = json.loads(line).items()
        except (ValueError, AttributeError, RecursionError):
            if not line.endswith(b"\n") and len(line) < LINE_BYTES_MAX and number > 1:
                raise CutOffError(f"line {number}, the last one, is cut off: its writer was stopped") from None
            raise RecordError(f"line {number} is no event of a record of steps") from None
        yield number, kind, value
        done += len(line)
        progress(done, size)
    if number == 0:
        raise RecordError("the file is empty")


def _apply(replay: Replay, number: int, kind: str, value: Any) -> Mapping[str, tuple[object, object]]:  # noqa: ANN401
    try:
        return replay.apply(kind, value)
    except (TypeError, LookupError, AttributeError):
        raise RecordError(f"line {number}: the fields of {kind!r} are not those of a record of steps") from None
    except (ValueError, RuntimeError, MemoryError) as error:
        raise RecordError(f"line {number}: {kind}: {error}") from None


def _progress(file: BinaryIO) -> AbstractContextManager[ProgressCallback]:
    if os.fstat(file.fileno()).st_size < PROGRESS_BYTES:
        return nullcontext(no_progress)
    return show_progress("replaying")


def _sampling(ranges: Sequence[Sequence[Any]]) -> list[int] | None:
    """The sequences that draw a token, in order; None of an empty plan, which nobody commits."""
    return [sequence for sequence, _, _, samples in ranges if samples] if ranges else None


def _as_recorded(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The same in the types that JSON has."""
    return {
        name: [list(each) if isinstance(each, tuple) else each for each in value] if isinstance(value, list) else value
        for name, value in plan.items()
    }
