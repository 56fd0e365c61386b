"""One option in its four forms: field, flag, environment variable, and key of the configuration file.

`options_of` derives them from the fields of config.py, so that a new field needs nothing else. Reading raises
ValueError that says what is accepted and does not name the option: who reads knows where the text stood.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, get_type_hints

from llmsrv.config import EngineOptions, plain_decimal

ENVIRONMENT_PREFIX = "LLMSRV_"
_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True, kw_only=True)
class Option:
    """How one field of the options is written, everywhere. `kind` is the type of its value, or of one of its values."""

    name: str
    kind: type
    help: str
    default: object  # MISSING when it must be given
    written_default: str | None
    parser: Callable[[str], Any] | None
    writer: Callable[[Any], str] | None
    unset: str | None
    repeated: str | None
    entry: type
    table: str
    opens: Literal["read", "write", "folder"] | None

    @property
    def flag(self) -> str:
        """As on a command line; for a mapping, that of one entry."""
        return self.repeated or f"--{self.name.replace('_', '-')}"

    @property
    def metavar(self) -> str:
        """What stands for the flag's value in a help text."""
        value = "on|off" if self.kind is bool else self.name.rpartition("_")[2].upper()
        if self.repeated is None:
            return value
        return f"[NAME=]{value}" if self._takes_one else "NAME=VALUE"

    @property
    def variable(self) -> str:
        """As in the environment."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def shown_default(self) -> str:
        """For a help text; empty where the help has it in words."""
        default = self.written_default or self.default
        return "" if default in (None, MISSING, ()) or self.repeated else str(default)

    def parse_flag(self, text: str) -> Any:  # noqa: ANN401
        """The value, or one entry of a mapping, that a flag's text means."""
        if self.parser is not None:
            return self.parser(text)
        if self.kind is bool:
            return _chosen(text)
        if self.kind is str:
            return text
        try:
            return self.kind(text)
        except ValueError:
            raise ValueError(f"{text!r} is not {_KINDS[self.kind]}") from None

    def parse_variable(self, text: str) -> Any:  # noqa: ANN401
        """The value that an environment variable's text means; the entries of a mapping are parted by commas."""
        if self.repeated is None:
            return self.parse_flag(text)
        entries = [self.parse_flag(each.strip()) for each in text.split(",")]
        if self._takes_one and any(name is None for name, _ in entries):
            entries = [self.parse_flag(text)]  # one path with commas in it
        return self.joined(entries)

    def parse_toml(self, value: object) -> Any:  # noqa: ANN401
        """The value that a value of the configuration file means. Text is not taken for a number, nor the reverse."""
        if self.repeated is not None and not (self._takes_one and isinstance(value, str)):
            return self._parse_toml_table(value)
        if self.repeated is not None:
            return value
        if self.parser is not None and isinstance(value, str | int | float) and not isinstance(value, bool):
            return self.parser(plain_decimal(value) if isinstance(value, float) else str(value))
        if self.kind is float and type(value) is int:
            return float(value)
        if type(value) is not self.kind:
            raise ValueError(f"must be {_KINDS[self.kind]}, not {_described(value)}")
        return value

    def write_toml(self, value: Any) -> str:  # noqa: ANN401
        """What parse_toml() reads as this value. Raises ValueError for text that is not Unicode.

        REQUIRES: the value is not None, or there is a word for that.
        """
        if value is None:
            return quoted(str(self.unset))
        if isinstance(value, Mapping):
            entries = [f"{quoted(key)} = {_written(each)}" for key, each in value.items()]
            return f"{{ {', '.join(entries)} }}" if entries else "{}"
        if self.repeated is not None:
            return quoted(value)
        if self.writer is not None:
            return quoted(self.writer(value))
        if isinstance(value, bool):
            return str(value).lower()
        return quoted(value) if isinstance(value, str) else repr(value)

    def joined(self, entries: list[tuple[str | None, Any]]) -> Any:  # noqa: ANN401
        """The mapping of entries that were given one by one, or the only one's value if that has no name.

        Raises ValueError for a name that was given twice, and where one is missing.
        """
        if self._takes_one and len(entries) == 1 and entries[0][0] is None:
            return entries[0][1]
        result: dict[str, Any] = {}
        for key, value in entries:
            if key is None:
                raise ValueError(f"{self.name}: each of several needs a name: {self.flag} NAME={value}")
            if key in result:
                raise ValueError(f"{self.name}: {key!r} is given twice")
            result[key] = value
        return result

    @property
    def _takes_one(self) -> bool:
        """Whether a value without a name is one, too."""
        return self.repeated is not None and self.default is MISSING

    def _parse_toml_table(self, value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            example = (
                "text, or a table such as { NAME = 'MODEL' }" if self._takes_one else "a table such as { NAME = 2 }"
            )
            raise ValueError(f"must be {example}, not {_described(value)}")
        accepted = (int, float) if self.entry is float else (self.entry,)
        for key, each in value.items():
            if type(each) not in accepted:
                raise ValueError(f"{key!r}: must be {_KINDS[self.entry]}, not {_described(each)}")
        return {key: self.entry(each) for key, each in value.items()}


def options_of(options: type[EngineOptions]) -> dict[str, Option]:
    """All options of such a configuration, by field, in their order."""
    hints = get_type_hints(options)
    made = {}
    for each in fields(options):
        hint = hints[each.name]
        kinds = [kind for kind in _KINDS if hint in (kind, kind | None)] or [str]
        made[each.name] = Option(
            name=each.name,
            kind=kinds[0],
            help=each.metadata["help"],
            default=each.default if each.default_factory is MISSING else each.default_factory(),
            written_default=each.metadata["written"],
            **{key: each.metadata[key] for key in ("parser", "writer", "unset", "repeated", "entry", "table", "opens")},
        )
    return made


def quoted(text: str) -> str:
    """Text as a basic string of TOML. Raises ValueError for half of a character, which no TOML file can have."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{text!r} is not Unicode and cannot stand in a TOML file") from None
    return f'"{"".join(map(_escaped, text))}"'


def _written(value: object) -> str:
    return quoted(value) if isinstance(value, str) else repr(value)


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return f"\\u{ord(character):04x}" if character < " " or character == "\x7f" else character


def _chosen(text: str) -> bool:
    if text.strip().lower() not in _SWITCH:
        raise ValueError(f"{text!r} is not a choice: write true or false")
    return _SWITCH[text.strip().lower()]


def _described(value: object) -> str:
    if isinstance(value, str):
        return f"the text {value!r}"
    if isinstance(value, int | float):
        return str(value).lower()
    return "an array" if isinstance(value, list) else "a table" if isinstance(value, dict) else "a date or time"
