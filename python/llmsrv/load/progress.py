"""How many requests are done: a bar on a terminal, a line every five seconds elsewhere. Writes to standard error."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from llmsrv.load.figures import Sample

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

LINE_S = 5.0


class Progress:
    """Of one run. Ends by itself with the last request; as a context also earlier."""

    def __init__(self, label: str, total: int) -> None:
        self._label, self._total = label, total
        self._done, self._failed, self._tokens = 0, 0, 0
        self._began = self._shown = time.monotonic()
        self._bar: RichProgress | None = _bar(label, total) if sys.stderr.isatty() else None

    def note(self, sample: Sample) -> None:
        """One more request is done."""
        self._done += 1
        self._failed += not sample.is_good
        self._tokens += sample.tokens
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._done, told=self._told())
        elif self._done == self._total or time.monotonic() - self._shown >= LINE_S:
            self._shown = time.monotonic()
            print(f"{self._label}: {self._done}/{self._total} requests, {self._told()}", file=sys.stderr, flush=True)
        if self._done == self._total:
            self.stop()

    def stop(self) -> None:
        """Leaves the last state of the bar on the terminal. Idempotent."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _told(self) -> str:
        speed = self._tokens / max(time.monotonic() - self._began, 1e-9)
        return f"{speed:.0f} output tokens/s" + (f", {self._failed} failed" if self._failed else "")


def _bar(label: str, total: int) -> "RichProgress":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TextColumn("requests, {task.fields[told]}"),
        TimeElapsedColumn(),
    )
    bar = Bar(*columns, console=Console(stderr=True))
    bar.add_task(label, total=total, told="0 output tokens/s")
    bar.start()
    return bar
