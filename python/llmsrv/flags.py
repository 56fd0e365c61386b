"""The command line of a daemon, and of the commands that look at its configuration: one flag for each option.

Parsed by argparse, which is there already. The library of the other commands costs 0.15 s of processor time at each
start, a third of what a daemon takes until it serves.
"""

import argparse
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from llmsrv.config import EngineOptions
from llmsrv.option import Option, options_of
from llmsrv.settings import CONFIG_VARIABLE, Settings, resolve, suggestion

T = TypeVar("T", bound=EngineOptions)

CONFIG_HELP = f"TOML file with options; the environment and flags go before it. Default: {CONFIG_VARIABLE}, or none."
PRECEDENCE_HELP = (
    "Each option may also stand in the file of --config, or in the environment, as LLMSRV_ and its name:\n"
    "LLMSRV_MAX_MODEL_LEN=4096. A flag goes before the environment, and that before the file."
)


def parse_settings(
    options: type[T],
    *,
    prog: str,
    description: str,
    arguments: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings[T]:
    """What file, environment and command line say. Exits with status 2 and a sentence for each thing that is wrong."""
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=f"{prog} --model MODEL [options]",
        description=description,
        epilog=PRECEDENCE_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--config", metavar="FILE", help=CONFIG_HELP)
    known = options_of(options)
    for option in known.values():
        _add_flag(parser, option)
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(_unrecognized(unknown, known.values()))
    flags = vars(parsed)
    config = flags.pop("config", None)
    try:
        for name in flags:
            if known[name].repeated:
                flags[name] = known[name].joined(flags[name])
        return resolve(
            options, config=config, environment=os.environ if environment is None else environment, flags=flags
        )
    except ValueError as error:
        parser.error(str(error))


def _unrecognized(arguments: Sequence[str], known: Iterable[Option]) -> str:
    """Flags without their values, which could be secrets that another program knows."""
    flags = [each.partition("=")[0] for each in arguments if each.startswith("-")]
    if not flags:
        return f"unrecognized arguments: {' '.join(arguments)}"
    names = ["--config", "--help", *(option.flag for option in known)]
    return f"unrecognized arguments: {' '.join(flags)}{suggestion(flags[0], names)}"


def _add_flag(parser: argparse.ArgumentParser, option: Option) -> None:
    default = option.shown_default
    help_text = (f"{option.help} Default: {default}." if default else option.help).replace("%", "%%")
    if option.kind is bool and option.parser is None:
        parser.add_argument(option.flag, dest=option.name, help=help_text, action=argparse.BooleanOptionalAction)
        return
    parser.add_argument(
        option.flag,
        dest=option.name,
        help=help_text,
        type=_checked(option.parse_flag),
        action="append" if option.repeated else "store",
        metavar=option.metavar,
    )


def _checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """The same, with an error that argparse shows as it is."""

    def parsed(text: str) -> object:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed
