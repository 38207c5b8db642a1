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


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  truenorm predict runs/students new.csv > predicted.csv
  printf 'name\\nmaria\\njohn\\n' | truenorm predict runs/gender -

A run of --task gender reads the column name. A run of --task table reads the columns that it was trained on; its
target may be missing. All columns are copied. Behind them come the column predicted and, for classes, one column with
the probability of each.
""",
)
@click.argument("directory", metavar="RUN", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@one_blas_thread()
def command(directory: Path, file: Path) -> None:
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
    found = predictor.predict(header, rows, name)
    added = [PREDICTED, *(f"p({one})" for one in found.classes)]
    for column in added:
        if column in header:
            raise ValueError(f"{name}: has a column {column!r} already, which would be added. Rename it.")
    shown = printable if sys.stdout is not None and sys.stdout.isatty() else str
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(map(shown, [*header, *added]))
    for i, (_, cells) in enumerate(rows):
        shares = () if found.probabilities is None else found.probabilities[i]
        writer.writerow([*map(shown, [*cells, found.values[i]]), *(f"{share:.4f}" for share in shares)])
    click.echo(written.getvalue(), nl=False)
