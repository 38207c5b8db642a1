"""The command `truenorm`. Each subcommand is a module, loaded when it is called.

Bad input ends with one line on standard error and exit code 2; `--debug` shows the traceback instead.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence

import click

from truenorm.cli.output import lenient_streams

# Each command is `command` in the module of its name. Its help is here, so that `truenorm --help` imports none.
COMMANDS = {
    "demo": "See what truenorm does, in under a minute.",
    "explain": "Show every number of a normalization, forward and backward.",
    "page": "Open an interactive page in the browser (one HTML file, offline).",
    "train": "Train a small network with hand-written backpropagation.",
    "sample": "Generate words with a network trained by `train`.",
    "env": "Show versions, engine, threads and missing packages.",
}

DEBUG = click.Option(["--debug"], is_flag=True, expose_value=False, help="Show the traceback if an error occurs.")


class Command(click.Command):
    """A command with the option --debug, which `main` handles."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), DEBUG]


class _Commands(click.Group):
    """Imports a command when it is called, so that `truenorm --help` starts quickly."""

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
    epilog="""\b
Examples:
  truenorm demo
  truenorm explain --example table
  truenorm train --help
""",
    params=[DEBUG],
)
@click.version_option(package_name="truenorm")
def commands() -> None:
    """Normalization for neural networks that ignores padding."""


@lenient_streams()
def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Bad input ends with a one-line message and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # print "?" where the terminal cannot show Σ
    try:
        code = commands.main(given, prog_name="truenorm", standalone_mode=False)
    except BrokenPipeError:  # the reader of a pipe has closed it, as in `truenorm explain | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (click.Abort, KeyboardInterrupt):
        click.echo("truenorm: interrupted.", err=True)
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(0)
    except MemoryError:
        if "--debug" in given:
            raise
        click.echo("truenorm: not enough memory for arrays of these sizes. Choose smaller ones.", err=True)
        sys.exit(2)
    except (click.ClickException, ValueError, TypeError, OSError) as error:
        if "--debug" in given:
            raise
        click.echo(f"truenorm: {_line(error)}", err=True)
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


def _line(error: Exception) -> str:
    """The first line of the message; the caret under a pattern, for example, is dropped."""
    if isinstance(error, click.UsageError):
        help_for = error.ctx.command_path if error.ctx else "truenorm"
        return f"{error.format_message()} See '{help_for} --help'."
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    return str(error).split("\n", 1)[0]
