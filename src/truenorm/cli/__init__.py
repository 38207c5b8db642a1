"""The command `truenorm`. Each subcommand is a module, loaded when it is called.

Bad input ends with one line on standard error and exit code 2, a fault of truenorm with one line and exit code 1;
`--debug` shows the traceback instead.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

import click

from truenorm.cli.output import lenient_streams
from truenorm.explanation.terminal import printable

# Each command is `command` in the module of its name. Its help is here, so that `truenorm --help` imports none.
COMMANDS = {
    "demo": "See what truenorm does, in under a minute.",
    "explain": "Show every number of a normalization, forward and backward.",
    "page": "Open an interactive page in the browser (one HTML file, offline).",
    "train": "Train a small network with hand-written backpropagation.",
    "compare": "Train every combination of some options, and compare.",
    "claims": "Test claims about normalization by experiments.",
    "sample": "Generate words with a network trained by `train`.",
    "predict": "Predict the rows of a CSV file with a network trained by `train`.",
    "report": "Write one HTML file about training runs: losses, layers, gradients.",
    "env": "Show versions, engine, threads and missing packages.",
}
REPORT_PACKAGES = ("altair", "vl_convert", "jinja2")  # of the extra `report`; other packages are of `lab`

REPORT = (
    "This is a fault in truenorm. Please report it with the output of 'truenorm env' and of this command with --debug."
)
MAX_LINE = 1000  # characters of an error: it may show a cell of a file
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
            extra = "report" if error.name in REPORT_PACKAGES else "lab"
            message = f"{name}: needs the package {error.name!r}. Install it: pip install 'truenorm[{extra}]'."
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
    """Run a command and exit. Bad input ends with exit code 2, a fault of truenorm with 1, both with one line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # print "?" where the terminal cannot show Σ
    try:
        code = _run(given)
        if sys.stdout is not None:
            sys.stdout.flush()  # an error here is reported below; when Python exits, it would be a traceback
    except BrokenPipeError:  # the reader of a pipe has closed it, as in `truenorm explain | head`
        _discard(sys.stdout)
        sys.exit(0)
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted.")
        sys.exit(130)
    except Exception as error:
        if debug:
            raise
        code, line = _explained(error)
        _say(line)
        _discard_unwritten()
    sys.exit(code)


def _run(given: list[str]) -> int:
    """Run a command and return its exit code. Not by `commands.main`: it ends the process when a pipe is closed."""
    if "_TRUENORM_COMPLETE" in os.environ:
        commands.main(given, prog_name="truenorm")  # completes words for a shell
    try:
        with commands.make_context("truenorm", list(given)) as ctx:
            code = commands.invoke(ctx)
    except click.exceptions.Exit as stop:  # after --help and --version
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    return code if isinstance(code, int) else 0


def _explained(error: Exception) -> tuple[int, str]:
    """The exit code and the line for an error. What no part of truenorm raises on purpose is a fault of truenorm."""
    # The first line: the caret under a pattern, for example, is dropped.
    first = next(iter(str(error).splitlines()), "")
    match error:
        case click.UsageError():
            help_for = error.ctx.command_path if error.ctx else "truenorm"
            return 2, f"{error.format_message()} See '{help_for} --help'."
        case click.ClickException():
            return 2, error.format_message()
        case MemoryError():
            return 2, "not enough memory for arrays of these sizes. Choose smaller ones."
        case OSError() if error.strerror is not None:
            name = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else error.filename
            return 2, f"{error.strerror}." if name is None else f"{name}: {error.strerror}."
        case OSError() | ValueError():
            return 2, first or f"{type(error).__name__}."
        case _:
            return 1, f"{type(error).__name__}: {first}. {REPORT}"


def _say(line: str) -> None:
    """Print a line on standard error, if it can be written to. Of a very long one, the middle is left out."""
    if len(line) > MAX_LINE:
        line = f"{line[: MAX_LINE // 2]} ... {line[-MAX_LINE // 2 :]}"
    try:
        click.echo(f"truenorm: {printable(line)}", err=True)
    except (OSError, ValueError):
        _discard(sys.stderr)


def _discard_unwritten() -> None:
    """After an error: write what is buffered for standard output, or discard it if that fails."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        _discard(sys.stdout)


def _discard(stream: TextIO | None) -> None:
    """Send what is buffered for a stream to nowhere: Python writes it on exit, which would fail again."""
    with suppress(OSError, ValueError, AttributeError):
        if stream is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
