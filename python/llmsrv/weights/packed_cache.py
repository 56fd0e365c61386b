"""Weights as they stood in memory, kept in a folder: the second start of a model maps them instead of packing them.

A file belongs to one content. Its key has the SHA-256 of every weight file, the place, format and row order of every
tensor in them, and this release; to that the core adds its own version, its layout and every matrix. The name of the
file is a hash of all this text, and the file begins with the text itself, which is compared whole. So a file of another
model, type, release or layout is never taken, and one that was cut short is not either: its size follows from the
text. It lands by a rename, so nobody sees half of it. The numbers behind the text are not looked at: they are no more
trusted than those of the model itself, and cannot lead the core out of its memory.

Hashing a checkpoint takes longer than mapping it. So a stamp remembers what was hashed: file, size, and the times of
change, of which the system's own cannot be set by anyone. A file that changed just before it was hashed gets no stamp,
since it could change again within the same tick of its clock.

How much the folder holds is bounded: packed_folder.py.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from dataclasses import fields
from pathlib import Path

import llmsrv
from llmsrv._core import MappedFile, Weights
from llmsrv.models.blueprint import WeightSource
from llmsrv.weights.fetch import file_sha256
from llmsrv.weights.model_files import ModelFiles
from llmsrv.weights.packed_folder import DEFAULT_BYTES_MAX, SUFFIX, Report, mark_used, remove_abandoned, trim
from llmsrv.weights.progress import ProgressCallback

_POPULATED_BYTES = 64 << 20
_YOUNG_NS = 2_000_000_000


class PackedCache:
    """The cached weights of one model in one type. Nothing here ever fails a start: what goes wrong is one line."""

    def __init__(
        self, folder: str | Path, files: ModelFiles, report: Report, bytes_max: int = DEFAULT_BYTES_MAX
    ) -> None:
        self._folder = Path(folder).expanduser()
        self._files = files
        self._report = report
        self._bytes_max = bytes_max
        self.was_used = False
        self.path = Path()  # of the file, once it is known
        self._key = ""
        self._identity: list[str] = []

    def map(self, weights: Weights, progress: ProgressCallback) -> bool:
        """Has `weights` stand in their file. False when there is none that can be used; then they are untouched."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._identity = self._source_identity()
            self._key = self._make_key()
        except OSError as error:
            self._report(f"packed cache: {self._folder} cannot be used ({error})")
            return False
        text_hash = hashlib.sha256(weights.packed_text(self._key).encode()).hexdigest()
        self.path = self._folder / f"{self._files.path.stem}-{text_hash[:32]}{SUFFIX}"
        try:
            file = MappedFile(str(self.path))
            problem = weights.map_packed(self._key, file)
            if problem is None:
                _populate(file, progress)
                self.was_used = True
                mark_used(self.path)
                trim(self._folder, self._bytes_max, self.path, self._report)
                return True
        except FileNotFoundError:
            return False
        except OSError as error:
            problem = str(error)
        self._report(f"packed cache: {self.path} is not used and will be replaced: {problem}")
        return False

    def write(self, weights: Weights) -> None:
        """Keeps weights that were packed from the files. REQUIRES: map() returned False for weights like these."""
        if not self._key:
            return
        began = time.monotonic()
        try:
            if self._source_identity() != self._identity:
                self._report("packed cache: the model's files changed while they were read; nothing was kept")
                return
            self._write(weights)
        except OSError as error:
            self._report(f"packed cache: {self.path} could not be written ({error})")
            return
        took = time.monotonic() - began
        self._report(f"packed cache: wrote {self.path}, {self.path.stat().st_size / 1e6:.1f} MB, in {took:.2f} s")
        remove_abandoned(self._folder, self._report)
        trim(self._folder, self._bytes_max, self.path, self._report)

    def _write(self, weights: Weights) -> None:
        handle, part = tempfile.mkstemp(dir=self._folder, prefix=".", suffix=SUFFIX)
        try:
            with os.fdopen(handle, "wb") as file:
                problem = weights.write_packed(self._key, file.fileno())
                if problem is not None:
                    raise OSError(problem)
                os.fsync(file.fileno())
            os.replace(part, self.path)
        except BaseException:
            os.unlink(part)
            raise

    def _make_key(self) -> str:
        lines = [f"release {llmsrv.__version__}"]
        places = {path: f"file {index}" for index, path in enumerate(self._source_paths())}
        lines += [f"{place} sha256 {self._digest(path)}" for path, place in places.items()]
        for weight, source in sorted(self._files.blueprint.sources.items()):
            tensor = self._files.tensors[source.tensor]
            lines.append(f"{weight} from {places[tensor.path]} at {tensor.offset} {tensor.format} {_how(source)}")
        return "\n".join(lines)

    def _source_paths(self) -> list[Path]:
        return sorted({self._files.tensors[each.tensor].path for each in self._files.blueprint.sources.values()})

    def _source_identity(self) -> list[str]:
        return [_identity(path) for path in self._source_paths()]

    def _digest(self, path: Path) -> str:
        """SHA-256 of a file, from its stamp when it has not changed since."""
        resolved = path.resolve()
        stamp = self._folder / f".{hashlib.sha256(os.fsencode(resolved)).hexdigest()[:32]}.sha256"
        identity = _identity(resolved)
        try:
            known, digest = stamp.read_text(encoding="ascii").rsplit(" ", 1)
            if known == identity and len(digest) == 64:
                return digest
        except (OSError, ValueError):
            pass
        digest = file_sha256(resolved)
        if _identity(resolved) == identity and not _is_young(resolved):
            _replace_text(stamp, f"{identity} {digest}")
        return digest


def _how(source: WeightSource) -> str:
    """All that a source says of how a tensor becomes a weight, whatever it may learn to say."""
    values = {each.name: getattr(source, each.name) for each in fields(source) if each.name != "tensor"}
    if source.rows is not None:
        values["rows"] = hashlib.sha256(source.rows.tobytes()).hexdigest()
    return " ".join(f"{name}={value!r}" for name, value in values.items())


def _populate(file: MappedFile, progress: ProgressCallback) -> None:
    for offset in range(0, file.nbytes, _POPULATED_BYTES):
        progress(offset, file.nbytes)
        file.populate(offset, min(_POPULATED_BYTES, file.nbytes - offset))
    progress(file.nbytes, file.nbytes)


def _identity(path: Path) -> str:
    status = os.stat(path)
    return f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def _is_young(path: Path) -> bool:
    status = os.stat(path)
    return time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) < _YOUNG_NS


def _replace_text(path: Path, text: str) -> None:
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(text)
    os.replace(part, path)
