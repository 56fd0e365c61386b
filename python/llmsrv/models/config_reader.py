"""Typed, range-checked reading of a model's configuration, where an unknown key is an error.

A key that changes the computation and is ignored gives wrong text without a word; so every key must be read, or be
known to change nothing, or have the value that switches it off.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

MAX_INT = 2**31 - 1


class ConfigReader:
    """Reads the keys of one configuration and remembers which. `where` begins every error message."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self.where = where
        self._values = values
        self._read: set[str] = set()

    def has(self, key: str) -> bool:
        """Whether the key is there with a value other than null."""
        return self._get(key) is not None

    def says_null(self, key: str) -> bool:
        """Whether the key is there with the value null, which for some keys differs from being absent."""
        return key in self._values and self._get(key) is None

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int = MAX_INT) -> int:
        """An integer in [low, high]; a required one when there is no default. Equal values per layer count as one."""
        value = _uniform(self._get(key))
        if value is None and default is not None:
            return default
        if type(value) is not int or not low <= value <= high:
            raise self.error(key, f"needs an integer from {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None, *, low: float, high: float) -> float:
        """A finite number in [low, high]; a required one when there is no default."""
        value = self._get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise self.error(key, f"needs a number from {low:g} to {high:g}")
        return float(value)

    def optional_integer(self, key: str, *, low: int, high: int = MAX_INT) -> int | None:
        """An integer in [low, high], or None when absent."""
        return self.integer(key, low=low, high=high) if self.has(key) else None

    def optional_number(self, key: str, *, low: float, high: float) -> float | None:
        """A finite number in [low, high], or None when absent."""
        return self.number(key, low=low, high=high) if self.has(key) else None

    def integers(self, key: str, *, low: int, high: int) -> list[int]:
        """One integer in [low, high] or a list of them; empty when absent."""
        value = self._get(key)
        if value is None:
            return []
        items: list[Any] = value if isinstance(value, list) else [value]
        if not all(type(item) is int and low <= item <= high for item in items):
            raise self.error(key, f"needs integers from {low} to {high}")
        return items

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, "needs true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string; a required one when there is no default."""
        value = self._get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.error(key, "needs a string")
        return value

    def texts(self, key: str) -> list[str]:
        """A list of strings; empty when absent."""
        value = self._get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, "needs a list of strings")
        return value

    def token_content(self, key: str) -> str | None:
        """A token written as a string or as an object with `content`; None when absent."""
        value = self._get(key)
        if isinstance(value, dict):
            value = value.get("content")
        if value is not None and not isinstance(value, str):
            raise self.error(key, "needs a token")
        return value

    def named_text(self, key: str, name: str) -> str | None:
        """A string, or the one called `name` in a list of {"name", "template"}; None when absent."""
        value = self._get(key)
        if isinstance(value, list):
            named = [item for item in value if isinstance(item, dict) and item.get("name") == name]
            value = named[0].get("template") if named else None
        if value is not None and not isinstance(value, str):
            raise self.error(key, "needs a string or a list of named strings")
        return value

    def section(self, key: str) -> Mapping[str, object]:
        """An object; empty when absent."""
        value = self._get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.error(key, "needs an object")
        return value

    def require(self, key: str, value: object, why: str) -> None:
        """Refuses any other value than `value`, which is also what absence means."""
        found = _uniform(self._get(key))
        if found is not None and (isinstance(found, np.ndarray) or found != value):
            raise self.error(key, why)

    def finish(self, harmless: Collection[str], harmless_prefixes: tuple[str, ...] = ()) -> None:
        """Refuses keys that were neither read nor are known to change nothing."""
        leftover = self.leftover(harmless, harmless_prefixes)
        if leftover:
            raise ValueError(
                f"{self.where}: keys that are not supported and may change the computation: {', '.join(leftover)}. "
                "Remove those that do not"
            )

    def leftover(
        self, harmless: Collection[str] = (), harmless_prefixes: tuple[str, ...] = (), *, within: str = ""
    ) -> list[str]:
        """`key = value` of all keys that begin with `within` and were not read, but for the harmless ones.

        null and false switch a key off.
        """
        return [
            f"{key} = {_short(value)}"
            for key, value in sorted(self._values.items())
            if key.startswith(within)
            and key not in self._read
            and key not in harmless
            and not key.startswith(harmless_prefixes)
            and value is not None
            and value is not False
        ]

    def error(self, key: str, problem: str) -> ValueError:
        """An error about one key, naming its value."""
        if key not in self._values:
            return ValueError(f"{self.where}: {key} is missing; it {problem}")
        return ValueError(f"{self.where}: {key} = {_short(self._values[key])}: {problem}")

    def _get(self, key: str) -> object:
        self._read.add(key)
        return self._values.get(key)


def _uniform(value: object) -> object:
    """The single value of an array whose elements are all equal; anything else as it is."""
    if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
        return value[0].item()
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
