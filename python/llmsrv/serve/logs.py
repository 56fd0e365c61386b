"""The daemon's log on standard error: text for people or a line of JSON for each record, and it holds up nobody.

Lines are made where the record is, and written by a thread of their own from a bounded queue: a terminal that is
stopped, a pipe that nobody reads or a full disk costs lines, which are counted and told, and never a token's time.
"""

import io
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from datetime import datetime, timezone

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
LINES_MAX = 10_000
BYTES_MAX = 8 << 20
BATCH_S = 0.02  # lines of so long a time are written together: the thread does not wake up for each one
CLOSE_S = 0.5
STDERR = 2

_operator = logging.getLogger("llmsrv.operator")
_PLAIN = re.compile(r"[^\s\"=\\\x00-\x1f\x7f-\x9f]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def report(line: str) -> None:
    """One line for the operator, whatever the level: through the log where there is one, else printed."""
    if _operator.hasHandlers():
        _operator.info(line)
    else:
        print(line, file=sys.stderr, flush=True)


@contextmanager
def logging_to(descriptor: int, *, form: str, level: str) -> Iterator["LineWriter"]:
    """Everything that is logged goes to a file descriptor, for the time of a `with` block.

    What is printed to standard error, too, unless text is wanted and a person looks on: bars are for terminals.
    """
    root, formatter = logging.getLogger(), JsonLines() if form == "json" else TextLines()
    writer = LineWriter(descriptor, lambda dropped: formatter.format(_drop_record(dropped)))
    handler = _QueueHandler(writer)
    handler.setFormatter(formatter)
    root.addHandler(handler)
    root.setLevel(level.upper())
    _operator.setLevel(logging.INFO)
    try:
        with nullcontext() if form == "text" and os.isatty(descriptor) else redirect_stderr(_StrayLines()):
            yield writer
    finally:
        root.removeHandler(handler)
        handler.close()


class LineWriter:
    """Writes lines to a file descriptor from a thread of its own. write() may be called from any thread, and never
    waits. Invariant: at most LINES_MAX lines and BYTES_MAX bytes wait; every other line is written or counted."""

    def __init__(
        self,
        descriptor: int,
        tell_dropped: Callable[[int], str],
        *,
        lines_max: int = LINES_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        """`tell_dropped`: the line that stands where so many are missing."""
        self._descriptor = descriptor
        self._tell_dropped = tell_dropped
        self._lines_max, self._bytes_max = lines_max, bytes_max
        self._changed = threading.Condition()
        self._waiting: list[str] = []  # guarded by _changed, as are the next four
        self._waiting_bytes = 0
        self._untold = 0
        self._closing = False
        self._dropped = 0
        self._broken = False  # the writing thread's
        self._thread = threading.Thread(target=self._run, name="llmsrv-log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines that were lost since the start."""
        return self._dropped

    def write(self, line: str) -> None:
        """One line, without its end. It is lost when too many wait."""
        with self._changed:
            if len(self._waiting) >= self._lines_max or self._waiting_bytes + len(line) > self._bytes_max:
                self._dropped += 1
                self._untold += 1
                return
            self._waiting.append(line)
            self._waiting_bytes += len(line)
            if len(self._waiting) == 1:
                self._changed.notify()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Writes what waits, as far as that can be done in so long a time. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                lines, self._waiting, self._waiting_bytes = self._waiting, [], 0
                untold, self._untold = self._untold, 0
                closing = self._closing
            if untold:
                lines.append(self._tell_dropped(untold))
            self._write(lines)
            if closing:
                return
            with self._changed:
                self._changed.wait_for(lambda: self._closing, BATCH_S)

    def _write(self, lines: list[str]) -> None:
        if not lines or self._broken:
            return
        left = memoryview("".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))
        try:
            while left:
                try:
                    left = left[os.write(self._descriptor, left) :]
                except BlockingIOError:  # whoever started this made it so
                    time.sleep(BATCH_S)
        except OSError:  # nobody reads it any more: that is no reason to end
            self._broken = True


class _QueueHandler(logging.Handler):
    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        """Makes the line and leaves it to the writer."""
        try:
            self._writer.write(self.format(record))
        except Exception:  # noqa: BLE001 - as every handler of the library
            self.handleError(record)

    def close(self) -> None:
        """Also called by logging.shutdown()."""
        self._writer.close()
        super().close()


class _StrayLines(io.TextIOBase):
    """What anything prints to standard error, as the operator's lines."""

    def __init__(self) -> None:
        self._begun = ""

    def write(self, text: str) -> int:
        """Logs the lines that are complete."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            if line.strip():
                _operator.info(line)
        return len(text)


class TextLines(logging.Formatter):
    """`time LEVEL message key=value ...`; the operator's lines stand alone. A client's text cannot make a new line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Without a traceback, which the library adds."""
        if record.name == _operator.name:
            return record.message
        line = _CONTROL.sub(_escaped, super().formatMessage(record))
        fields = getattr(record, "fields", None)
        return line if not fields else f"{line} {' '.join(f'{key}={_plain(value)}' for key, value in fields.items())}"


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, message, then what the record has of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """A traceback is one string."""
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        line = {
            "time": f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _plain(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _escaped(found: "re.Match[str]") -> str:
    return found[0].encode("unicode_escape").decode()


def _drop_record(dropped: int) -> logging.LogRecord:
    text = f"{dropped} lines of the log were lost: they came faster than they could be written"
    made = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING", "msg": text, "created": time.time()}
    return logging.makeLogRecord(made)
