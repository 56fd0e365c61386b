"""The effective configuration as text: a TOML file that --config takes, with the origin of each value beside it."""

from collections.abc import Iterator, Mapping
from typing import TypeVar

import llmsrv
from llmsrv.config import TABLES, EngineOptions
from llmsrv.option import options_of
from llmsrv.settings import SECRET_VARIABLES, Settings

T = TypeVar("T", bound=EngineOptions)
_COMMENT_COLUMN = 48


def show_settings(settings: Settings[T], environment: Mapping[str, str]) -> str:
    """Read again it gives the same options. Raises ValueError for text that no TOML file can have."""
    return "\n".join(_shown(settings, environment)) + "\n"


def _shown(settings: Settings[T], environment: Mapping[str, str]) -> Iterator[str]:
    yield f"# What llmsrv-grpc {llmsrv.__version__} would run with; --config takes this file."
    for note in settings.notes:
        yield f"# {note}"
    for variable in SECRET_VARIABLES:
        if environment.get(variable):
            yield f"# {variable} is set, and never shown"
    known = options_of(type(settings.options)).values()
    for table in TABLES:
        yield ""
        yield f"[{table}]"
        for option in known:
            if option.table != table:
                continue
            value = getattr(settings.options, option.name)
            has_form = value is not None or option.unset is not None
            text = f"{option.name} = {option.write_toml(value)}" if has_form else f"# {option.name} is not set"
            yield f"{text:<{_COMMENT_COLUMN}} # {_printable(str(settings.origins[option.name]))}"


def _printable(text: str) -> str:
    return text if text.isprintable() else repr(text)
