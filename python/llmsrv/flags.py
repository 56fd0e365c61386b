"""The flags of a daemon: one for each field of its options, as config.flags_of() makes them for the other commands.

Parsed by argparse, which is there already. The library of the other commands costs 0.15 s of processor time at each
start, a third of what a daemon takes until it serves.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar, get_type_hints

from llmsrv.config import EngineOptions, from_flags

T = TypeVar("T", bound=EngineOptions)


def parse_flags(options: type[T], *, prog: str, description: str, arguments: Sequence[str] | None = None) -> T:
    """The options that the command line says. Exits with status 2 and one sentence when it says nothing possible."""
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=f"{prog} --model MODEL [options]",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    hints = get_type_hints(options)
    for each in fields(options):
        _add_flag(parser, each, hints[each.name])
    values = vars(parser.parse_args(arguments))
    try:
        return from_flags(options, values)
    except ValueError as error:
        parser.error(str(error))


def _add_flag(parser: argparse.ArgumentParser, each: "Field[Any]", hint: object) -> None:
    repeated = each.metadata["repeated"]
    flag = repeated or f"--{each.name.replace('_', '-')}"
    required = each.default is MISSING and not repeated
    help_text = each.metadata["help"] + _shown_default(each)
    help_text = help_text.replace("%", "%%")
    if hint in (bool, bool | None):
        parser.add_argument(flag, dest=each.name, help=help_text, action=argparse.BooleanOptionalAction)
        return
    parser.add_argument(
        flag,
        dest=each.name,
        help=help_text,
        required=required,
        type=_checked(each.metadata["parser"] or _plain_type(hint)),
        action="append" if repeated else "store",
        metavar="NAME=VALUE" if repeated else each.name.rpartition("_")[2].upper(),
    )


def _shown_default(each: "Field[Any]") -> str:
    default = each.metadata["written"] or each.default
    return "" if default in (None, MISSING) else f" Default: {default}."


def _plain_type(hint: object) -> Callable[[str], Any]:
    return next((plain for plain in (int, float) if hint in (plain, plain | None)), str)


def _checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """The same, with an error that argparse shows as it is."""

    def parsed(text: str) -> object:
        try:
            return parse(text)
        except ValueError as error:
            message = str(error)
            if parse in (int, float):
                message = f"{text!r} is not {'a whole number' if parse is int else 'a number'}"
            raise argparse.ArgumentTypeError(message) from None

    return parsed
