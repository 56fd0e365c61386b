"""Where options come from: the configuration file, the environment, the command line; the later one wins, per option.

Nothing that was written is ignored: unknown keys and variables are errors, and all of a source are reported at once.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from llmsrv.config import TABLES, EngineOptions
from llmsrv.option import ENVIRONMENT_PREFIX, Option, options_of

T = TypeVar("T", bound=EngineOptions)

CONFIG_VARIABLE = "LLMSRV_CONFIG"  # as --config
# Read elsewhere: by the core, by what fetches models, by who guards the ports. Their values are never shown.
SECRET_VARIABLES = ("LLMSRV_API_KEY", "LLMSRV_ADMIN_TOKEN")
OTHER_VARIABLES = ("LLMSRV_ISA", "LLMSRV_CACHE", CONFIG_VARIABLE, *SECRET_VARIABLES)
_TEST_PREFIX = "LLMSRV_TEST_"
# Kubernetes tells each container about the services around it: one that is called "llmsrv" becomes LLMSRV_PORT.
_SERVICE_LINK = re.compile(r"\w+_SERVICE_(HOST|PORT(_\w+)?)|\w+_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?")
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://\S+")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a value stood. `place` is a file and line, a variable or a flag; empty for a default."""

    kind: str
    place: str = ""

    def __str__(self) -> str:
        return self.place if self.kind == "file" else f"{self.kind} {self.place}".rstrip()


DEFAULT = Origin(kind="default")


@dataclass(frozen=True, kw_only=True)
class Settings(Generic[T]):
    """The effective options, and the origin of each by its field's name. `notes`: what an operator should know."""

    options: T
    origins: Mapping[str, Origin]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Source:
    values: dict[str, Any]
    origins: dict[str, Origin]
    notes: tuple[str, ...] = ()


def resolve(
    options: type[T], *, config: str | None, environment: Mapping[str, str], flags: Mapping[str, Any]
) -> Settings[T]:
    """The options that all sources together say. Raises ValueError with one line for each problem.

    `flags` are values of the fields; `config` is the path of the file, which LLMSRV_CONFIG may name, too.
    """
    known = options_of(options)
    path = config or environment.get(CONFIG_VARIABLE)
    readers: list[Callable[[], _Source]] = [lambda: _from_file(known, path)] if path else []
    readers += [lambda: _from_environment(known, environment), lambda: _from_flags(known, flags)]
    values: dict[str, Any] = {}
    origins = dict.fromkeys(known, DEFAULT)
    notes: list[str] = []
    problems: list[str] = []
    for read in readers:
        try:
            source = read()
        except ValueError as error:
            problems.append(str(error))
            continue
        values |= source.values
        origins |= source.origins
        notes += source.notes
    if problems:
        raise ValueError("\n".join(problems))
    if "model" not in values:
        raise ValueError(f"{known['model'].flag}, {known['model'].variable} or a file's model must say what to serve")
    try:
        return Settings(options=options(**values), origins=origins, notes=tuple(notes))
    except ValueError as error:
        raise ValueError(_with_origin(str(error), origins)) from None


def _from_file(known: Mapping[str, Option], path: str) -> _Source:
    from llmsrv.toml_file import read_toml

    file = read_toml(path)
    values: dict[str, Any] = {}
    problems: list[str] = []
    for table, keys in file.values.items():
        if table in TABLES and isinstance(keys, dict):
            for key, value in keys.items():
                try:
                    values[key] = _option_of(known, table, key).parse_toml(value)
                except ValueError as error:
                    problems.append(f"{file.where((table, key))}: {key}: {error}")
        else:
            problems.append(f"{file.where((table,))}: {_wrong_table(known, table)}")
    if problems:
        raise ValueError("\n".join(problems))
    places = {name: file.where((known[name].table, name)) for name in values}
    return _Source(values=values, origins={name: Origin(kind="file", place=place) for name, place in places.items()})


def _option_of(known: Mapping[str, Option], table: str, key: str) -> Option:
    if key not in known:
        raise ValueError(f"there is no such option{suggestion(key, known)}")
    if known[key].table != table:
        raise ValueError(f"belongs into the table [{known[key].table}], not [{table}]")
    return known[key]


def _wrong_table(known: Mapping[str, Option], name: str) -> str:
    if name in known:
        return f"{name}: belongs into the table [{known[name].table}]"
    if name in TABLES:
        return f"{name}: must be a table: [{name}]"
    return f"{name}: there is no such table or option{suggestion(name, [*TABLES, *known])}"


def _from_environment(known: Mapping[str, Option], environment: Mapping[str, str]) -> _Source:
    """An empty variable is one that is not set: a template of a container cannot leave one out."""
    by_variable = {option.variable: option for option in known.values()}
    values: dict[str, Any] = {}
    problems: list[str] = []
    links: list[str] = []
    for variable, text in sorted(environment.items()):
        option = by_variable.get(variable)
        if not variable.startswith(ENVIRONMENT_PREFIX) or not text or variable in OTHER_VARIABLES:
            continue
        if _is_service_link(variable, text):
            links.append(variable)
        elif option is not None:
            try:
                values[option.name] = option.parse_variable(text)
            except ValueError as error:
                problems.append(f"environment {variable}: {error}")
        elif not variable.startswith(_TEST_PREFIX):
            hint = suggestion(variable, [*by_variable, *OTHER_VARIABLES])
            problems.append(f"environment {variable}: there is no such variable{hint}")
    if problems:
        raise ValueError("\n".join(problems))
    origins = {name: Origin(kind="environment", place=known[name].variable) for name in values}
    return _Source(values=values, origins=origins, notes=_link_notes(links))


def _is_service_link(variable: str, text: str) -> bool:
    return bool(_SERVICE_LINK.fullmatch(variable)) or bool(variable.endswith("_PORT") and _SERVICE_URL.fullmatch(text))


def _link_notes(links: list[str]) -> tuple[str, ...]:
    if not links:
        return ()
    return (
        f"not read, because a Kubernetes service set them: {', '.join(links)}"
        " (enableServiceLinks: false keeps them out)",
    )


def _from_flags(known: Mapping[str, Option], flags: Mapping[str, Any]) -> _Source:
    origins = {name: Origin(kind="flag", place=known[name].flag) for name in flags}
    return _Source(values=dict(flags), origins=origins)


def suggestion(name: str, names: Iterable[str]) -> str:
    """The end of a message: a name that was probably meant. Dashes and capitals do not matter for it."""
    from difflib import get_close_matches

    by_form = {each.lower().replace("-", "_"): each for each in names}
    close = get_close_matches(name.lower().replace("-", "_"), by_form, n=1, cutoff=0.75)
    return f"; did you mean {by_form[close[0]]}?" if close else ""


def _with_origin(message: str, origins: Mapping[str, Origin]) -> str:
    """The options' own message, which begins with a field's name, after the place that is to blame."""
    origin = origins.get(message.partition(":")[0], DEFAULT)
    return f"{origin}: {message}" if origin.kind in ("file", "environment") else message
