"""The command `truenorm`: one module a command, loaded when it is called, and one way to fail.

Bad input ends with one line on standard error and exit code 2; `--debug` shows the traceback instead.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence

import click

# Each command is `command` in the module of its name. The help line stands here so that `--help` loads none of them.
COMMANDS = {
    "demo": "A guided tour of what truenorm does, in under a minute.",
    "explain": "Every number of a normalization, forward and backward.",
    "page": "An interactive page, in one file that works offline.",
    "train": "Train a small network with hand-written backpropagation.",
    "sample": "New words from a run of `train`.",
    "env": "Versions, engine, threads, and what is missing.",
}

DEBUG = click.Option(["--debug"], is_flag=True, expose_value=False, help="Show the traceback of an error.")


class Command(click.Command):
    """A command that takes --debug, which `main` looks for."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), DEBUG]


class _Commands(click.Group):
    """Loads a command when it is called, so that the others' imports cost nothing."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        try:
            found: Command = importlib.import_module(f"truenorm.cli.{name}").command
        except ModuleNotFoundError as error:
            message = f"{name}: needs the package {error.name!r}. Install it: pip install 'truenorm[lab]'."
            raise click.ClickException(message) from None
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: truenorm demo",
    params=[DEBUG],
)
@click.version_option(package_name="truenorm")
def commands() -> None:
    """Normalization for neural networks whose statistics are true."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; every error that a user can make is one line and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # Σ on a terminal that has none is "?", not a failure
    try:
        code = commands.main(words, prog_name="truenorm", standalone_mode=False)
    except BrokenPipeError:  # `truenorm explain | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (click.Abort, KeyboardInterrupt):
        click.echo("truenorm: interrupted.", err=True)
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(0)
    except MemoryError:
        if "--debug" in words:
            raise
        click.echo("truenorm: not enough memory for arrays of these sizes. Choose smaller ones.", err=True)
        sys.exit(2)
    except (click.ClickException, ValueError, TypeError, OSError) as error:
        if "--debug" in words:
            raise
        click.echo(f"truenorm: {_line(error)}", err=True)
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


def _line(error: Exception) -> str:
    """The message without its further lines, such as the caret under a pattern."""
    if isinstance(error, click.UsageError):
        help_for = error.ctx.command_path if error.ctx else "truenorm"
        return f"{error.format_message()} See '{help_for} --help'."
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    return str(error).split("\n", 1)[0]
