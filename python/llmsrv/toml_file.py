"""A TOML file, with the line of every key: the standard library's reader keeps none.

How the lines are found: a statement (a table's header, or a key and its value) may go over several lines, but no part
of it is a document. So lines are gathered until they are one; then a statement is complete, and began with the first.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_BYTES_MAX = 64 << 10
_DEPTH_MAX = 4  # of keys whose line is kept
Key = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TomlFile:
    """What stands in it. `lines`: of the tables and keys, each by its whole path; the first is 1."""

    name: str
    values: dict[str, Any]
    lines: dict[Key, int]

    def where(self, key: Key) -> str:
        """File and line of a key, or of the table around it."""
        while key and key not in self.lines:
            key = key[:-1]
        return f"{self.name}:{self.lines.get(key, 1)}"


def read_toml(path: str) -> TomlFile:
    """Reads a file. Raises ValueError that begins with the file's name, and line where one is to blame."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(data) > _BYTES_MAX:
        raise ValueError(f"{path}: is longer than a configuration can be, {_BYTES_MAX} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}:{data.count(10, 0, error.start) + 1}: is not UTF-8 text") from None
    return parse_toml(path, text)


def parse_toml(name: str, text: str) -> TomlFile:
    """The same for text that came from a file of this name."""
    text = text.replace("\r\n", "\n")
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(_located(name, text, str(error))) from None
    except RecursionError:
        raise ValueError(f"{name}: is nested too deeply") from None
    return TomlFile(name=name, values=values, lines=_lines(text))


def _lines(text: str) -> dict[Key, int]:
    """The first line of every key and table. REQUIRES: the text is a TOML document."""
    found: dict[Key, int] = {}
    header: Key = ()
    statement = ""
    first = 1
    for number, line in enumerate(text.split("\n"), 1):
        statement += line + "\n"
        made = _document(statement)
        if made is None:
            continue
        keys = _keys(made)
        if line.lstrip().startswith("[") and first == number:
            header = keys[-1]
            keys = [header[:depth] for depth in range(1, len(header) + 1)]
        else:
            keys = [header + key for key in keys]
        for key in keys:
            found.setdefault(key, first)
        statement, first = "", number + 1
    return found


def _document(text: str) -> "dict[str, Any] | None":
    try:
        made: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
    return made


def _keys(table: dict[str, Any], depth: int = 1) -> list[Key]:
    """Paths of what is in nested tables; a table comes before its contents."""
    found: list[Key] = []
    for key, value in table.items():
        found.append((key,))
        inner = value[0] if isinstance(value, list) and value else value
        if isinstance(inner, dict) and depth < _DEPTH_MAX:
            found += [(key, *rest) for rest in _keys(inner, depth + 1)]
    return found


def _located(name: str, text: str, message: str) -> str:
    """`message` is the reader's, with the place at its end."""
    plain, _, place = message.partition(" (at ")
    line = re.match(r"line (\d+)", place)
    number = int(line[1]) if line else len(text.rstrip("\n").split("\n"))
    return f"{name}:{number}: {plain[:1].lower()}{plain[1:]}"
