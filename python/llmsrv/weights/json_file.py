"""Reading JSON files that nobody vouches for: bounded in size, depth and numbers, without duplicate keys."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path

MAX_CONFIG_BYTES = 16 << 20


def parse_json_object(text: bytes, where: str) -> dict[str, object]:
    """Parses UTF-8 JSON whose outermost value is an object. Raises ValueError that starts with `where`.

    The caller bounds the length of `text`; what it parses to takes at most about 30 times as much.
    """
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise ValueError(f"{where}: not usable JSON: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{where}: not usable JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where}: the JSON is not an object")
    return value


def read_json_object(path: str | os.PathLike[str], max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, object]:
    """Reads a small JSON file. Raises OSError when it cannot be opened, ValueError when malformed or too large."""
    path = Path(path)
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path}: not a regular file")
    if status.st_size > max_bytes:
        raise ValueError(f"{path}: {status.st_size} bytes long; at most {max_bytes} are read")
    with open(path, "rb") as file:
        return parse_json_object(file.read(max_bytes), str(path))


def _unique_keys(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key!r} occurs twice")
        result[key] = value
    return result


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
