"""The folder of the packed cache: how much it may hold, and what goes when that is exceeded.

Nothing is removed but what is ours. That is a plain file, no link, whose name has the form that the cache gives and
which begins as packed weights do; or one that the cache was writing when its process was killed. The time of change of
a file says when it was used last. The file that is in use now stays, however large it is. What others hold mapped may
go: they keep their pages.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

Report = Callable[[str], None]

SUFFIX = ".packed"
DEFAULT_BYTES_MAX = 32 << 30
_HEAD = b"llmsrv packed weights, version "
_NAME = re.compile(r".+-[0-9a-f]{32}\.packed", re.DOTALL)
_PART_NAME = re.compile(r"\.[a-z0-9_]{8}\.packed")
_ABANDONED_S = 3600.0  # a file that is being written changes all the time


@dataclass(frozen=True)
class _Kept:
    path: Path
    nbytes: int
    used_ns: int


def mark_used(path: Path) -> None:
    """Makes a file the one that was used last. A folder that cannot be written to is used as it is."""
    with suppress(OSError):
        os.utime(path)


def trim(folder: Path, bytes_max: int, in_use: Path, report: Report) -> None:
    """Removes what is ours, and longest unused, until the rest fits; `in_use` stays. Never fails: it tells."""
    try:
        kept = _kept_in(folder)
    except OSError as error:
        report(f"packed cache: {folder} cannot be listed ({error})")
        return
    total = sum(each.nbytes for each in kept)
    for each in sorted(kept, key=lambda each: each.used_ns):
        if total <= bytes_max:
            return
        if each.path != in_use and _remove(each.path, f"the folder may hold {bytes_max / 1e6:.1f} MB", report):
            total -= each.nbytes


def remove_abandoned(folder: Path, report: Report) -> None:
    """Removes what processes were writing when they were killed."""
    try:
        parts = [Path(each) for each in os.scandir(folder) if _PART_NAME.fullmatch(each.name) and _is_ours(each)]
        old = [part for part in parts if time.time() - part.stat().st_mtime > _ABANDONED_S]
    except OSError:
        return
    for part in old:
        _remove(part, "nobody goes on writing it", report)


def _kept_in(folder: Path) -> list[_Kept]:
    found = []
    for entry in os.scandir(folder):
        if _NAME.fullmatch(entry.name) and _is_ours(entry):
            status = entry.stat(follow_symlinks=False)
            found.append(_Kept(Path(entry.path), status.st_size, status.st_mtime_ns))
    return found


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """A file that begins as packed weights do, or is empty; no folder, link or anything that vanished."""
    try:
        if not entry.is_file(follow_symlinks=False):
            return False
        with open(entry.path, "rb") as file:
            head = file.read(len(_HEAD))
    except OSError:
        return False
    return head in (b"", _HEAD)


def _remove(path: Path, why: str, report: Report) -> bool:
    """Whether it is gone, if need be by another process's hand."""
    try:
        nbytes = path.stat().st_size
        path.unlink()
    except FileNotFoundError:
        return True
    except OSError as error:
        report(f"packed cache: {path} could not be removed ({error})")
        return False
    report(f"packed cache: removed {path}, {nbytes / 1e6:.1f} MB: {why}")
    return True
