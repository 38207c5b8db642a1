"""`truenorm predict`: predictions of a trained network for the rows of a CSV file."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

import click

from truenorm.cli import Command
from truenorm.explanation.terminal import printable
from truenorm.lab.blas import one_blas_thread
from truenorm.lab.history import read_history
from truenorm.lab.prediction import load_predictor
from truenorm.lab.table import read_rows
from truenorm.lab.text_file import read_text, text_of

PREDICTED = "predicted"
SHOWN_PROBLEMS = 10
INCOMPLETE = 3  # exit code, as that of a comparison with failed trials


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  truenorm predict runs/students new.csv > predicted.csv
  printf 'name\\nmaria\\njohn\\n' | truenorm predict runs/gender -

A run of --task gender reads the column name. A run of --task table reads the columns that it was trained on; its
target may be missing. All columns are copied. Behind them come the column predicted and, for classes, one column with
the probability of each.

A row that cannot be predicted, such as a name with a letter that the run has not seen or a cell without a number, has
empty cells there. Standard error says which rows, why, and how many. Exit code 3: there are such rows.
""",
)
@click.argument("directory", metavar="RUN", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@one_blas_thread()
def command(directory: Path, file: Path) -> int:
    """Predict each row of FILE, a CSV file with a header, with the network of RUN. `-` reads standard input.

    RUN is a directory that `truenorm train --task gender` or `--task table` wrote. Writes CSV to standard output.
    """
    predictor = load_predictor(directory)
    if (warning := read_history(directory).warning("predictions")) is not None:
        click.echo(warning, err=True)
    from_stdin = str(file) == "-"
    name = "standard input" if from_stdin else str(file)
    if from_stdin and sys.stdin is None:
        raise ValueError("standard input: is closed. Give a CSV file.")
    text = text_of(sys.stdin.buffer, name) if from_stdin else read_text(file)
    header, rows = read_rows(text, name)
    added = [PREDICTED, *(f"p({one})" for one in predictor.classes)]
    for column in added:
        if column in header:
            raise ValueError(f"{name}: has a column {column!r} already, which would be added. Rename it.")
    found = predictor.predict(header, rows, name)
    shown = printable if sys.stdout is not None and sys.stdout.isatty() else str
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(map(shown, [*header, *added]))
    for (_, cells), one in zip(rows, found, strict=True):
        shares = [f"{share:.4f}" for share in one.probabilities] or [""] * len(predictor.classes)
        writer.writerow([*map(shown, [*cells, one.value]), *shares])
    click.echo(written.getvalue(), nl=False)
    return _show_problems(name, [(line, one.problem) for (line, _), one in zip(rows, found, strict=True)])


def _show_problems(name: str, rows: list[tuple[int, str | None]]) -> int:
    """The rows without a prediction, on standard error. Returns the exit code."""
    problems = [(line, problem) for line, problem in rows if problem is not None]
    if not problems:
        return 0
    for line, problem in problems[:SHOWN_PROBLEMS]:
        click.echo(printable(f"{name}, line {line}: {problem}."), err=True)
    more = f" The first {SHOWN_PROBLEMS} are above." if len(problems) > SHOWN_PROBLEMS else ""
    click.echo(f"{len(problems):,} of {len(rows):,} rows have no prediction: their cells are empty.{more}", err=True)
    return INCOMPLETE
