"""Progress of long byte-wise work: a bar on a terminal, plain lines with times elsewhere. Writes to standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import TextIO

# Called with the bytes that are done and the bytes of the whole work.
ProgressCallback = Callable[[int, int], None]

_LINE_INTERVAL_S = 5.0


def no_progress(done: int, total: int) -> None:
    """Shows nothing."""


def show_progress(label: str, stream: TextIO | None = None) -> AbstractContextManager[ProgressCallback]:
    """A callback that shows `label` and how far the work is, for the time of a `with` block."""
    stream = sys.stderr if stream is None else stream
    return _Bar(label, stream) if stream.isatty() else _Lines(label, stream)


class FetchProgress(ExitStack):
    """A progress callback that shows itself with its first call: what is in the cache already is not mentioned."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: ProgressCallback | None = None

    def __call__(self, done: int, total: int) -> None:
        """Shows how far it is."""
        if self._shown is None:
            self._shown = self.enter_context(show_progress("fetching the model"))
        self._shown(done, total)


class _Lines:
    """One line at the start, one at the end, and one every few seconds between them."""

    def __init__(self, label: str, stream: TextIO) -> None:
        self._label = label
        self._stream = stream
        self._done = 0

    def __enter__(self) -> ProgressCallback:
        self._started = self._shown = time.monotonic()
        self._print(f"{self._label} ...")
        return self._update

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        outcome = "done" if error is None else "failed"
        elapsed_s = time.monotonic() - self._started
        self._print(f"{self._label}: {outcome}, {self._done / 1e6:.1f} MB in {elapsed_s:.2f} s")

    def _update(self, done: int, total: int) -> None:
        self._done = done
        now = time.monotonic()
        if now - self._shown >= _LINE_INTERVAL_S:
            self._shown = now
            percent = 100 * done // max(total, 1)
            self._print(f"{self._label}: {percent} % of {total / 1e6:.1f} MB after {now - self._started:.1f} s")

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class _Bar:
    """A bar with speed and remaining time."""

    def __init__(self, label: str, stream: TextIO) -> None:
        # Imported here: it takes a tenth of a second that a daemon without a terminal need not pay.
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TransferSpeedColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeElapsedColumn(),
            console=Console(file=stream),
        )
        self._task = self._progress.add_task(label, total=None)

    def __enter__(self) -> ProgressCallback:
        self._progress.start()
        return self._update

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def _update(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total)
