"""`llmsrv config`: what a daemon would run with, and whether it would start at all. Loads nothing."""

import os
import sys

import typer

from llmsrv.config import ServeConfig
from llmsrv.flags import parse_settings
from llmsrv.settings import Settings
from llmsrv.settings_text import show_settings

# For a command that takes the daemon's flags: they are parsed by the daemon's own parser.
AS_A_DAEMON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
config_app = typer.Typer(no_args_is_help=True, help="Look at the configuration of a daemon.")


@config_app.command("show", context_settings=AS_A_DAEMON)
def show(context: typer.Context) -> None:
    """Print the effective configuration as TOML, each value with its origin. Status 2 when there is none.

    Takes every option of llmsrv-grpc, and reads the same file and environment.
    """
    settings = settings_of(context, "Prints the effective configuration as TOML, each value with its origin.")
    try:
        print(show_settings(settings, os.environ), end="")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


@config_app.command("check", context_settings=AS_A_DAEMON)
def check(context: typer.Context) -> None:
    """Say what is wrong with the configuration. Status 0 when nothing is, else 2.

    Takes every option of llmsrv-grpc, and reads the same file and environment.
    """
    for note in settings_of(context, "Says what is wrong with the configuration; status 2 when something is.").notes:
        print(note)
    print("nothing is wrong")


def settings_of(context: typer.Context, description: str) -> Settings[ServeConfig]:
    """What the command line of this command means to a daemon. Exits with status 2 when that is nothing."""
    return parse_settings(ServeConfig, prog=context.command_path, description=description, arguments=context.args)
