"""A read-only mapping of one file, and the tensors that lie in it.

The only place where bytes of an untrusted file are taken: every range is checked against the file's size first.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

# Values per block and bytes per block of the formats that the core can unpack, by the core's names.
BLOCK_SIZES: dict[str, tuple[int, int]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q8_0": (32, 34),
    "q4_k": (256, 144),
    "q5_k": (256, 176),
    "q6_k": (256, 210),
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor lies in its file. `shape` is [out, in] for a matrix, [n] for a vector."""

    path: Path
    name: str
    shape: tuple[int, ...]
    format: str  # a key of BLOCK_SIZES
    offset: int  # from the start of the file
    nbytes: int


class MappedFile:
    """Maps a regular file. Not thread-safe while closing; slices may be read from any thread."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises OSError when the file cannot be opened, ValueError when it is empty or not a regular file."""
        self.path = Path(path)
        # Asking before opening: opening a named pipe would wait for a writer.
        status = os.stat(self.path)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{self.path}: not a regular file")
        if status.st_size == 0:
            raise ValueError(f"{self.path}: the file is empty")
        with open(self.path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.size = len(self._map)
        self._view = memoryview(self._map)

    def slice(self, offset: int, nbytes: int) -> memoryview:
        """The bytes [offset, offset + nbytes) without a copy. Raises ValueError when they are not all in the file."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size:
            raise ValueError(
                f"{self.path}: bytes {offset} to {offset + nbytes} are outside the file of {self.size} bytes"
            )
        return self._view[offset : offset + nbytes]

    def drop_pages(self, offset: int, nbytes: int) -> None:
        """Takes the pages wholly inside the range out of resident memory; they can be read again."""
        first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (offset + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def close(self) -> None:
        """Ends the mapping, or lets it end with the last slice that is still held. Idempotent."""
        if self._map.closed:
            return
        self._map.madvise(mmap.MADV_DONTNEED)
        self._view.release()
        with contextlib.suppress(BufferError):
            self._map.close()


class TensorReader:
    """Reads stored tensors, mapping each file when it is first needed. One thread at a time."""

    def __init__(self) -> None:
        self._files: dict[Path, MappedFile] = {}

    def data(self, tensor: StoredTensor) -> memoryview:
        """The tensor's bytes without a copy, valid while they are held.

        Raises ValueError when the file has become too short since the tensor was found in it.
        """
        if tensor.path not in self._files:
            self._files[tensor.path] = MappedFile(tensor.path)
        return self._files[tensor.path].slice(tensor.offset, tensor.nbytes)

    def drop_pages(self, tensor: StoredTensor) -> None:
        """Takes the tensor's bytes out of resident memory. REQUIRES: data() was called for it."""
        self._files[tensor.path].drop_pages(tensor.offset, tensor.nbytes)

    def close(self) -> None:
        """Ends all mappings. Idempotent."""
        for file in self._files.values():
            file.close()

    def __enter__(self) -> TensorReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
