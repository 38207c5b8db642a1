"""`truenorm explain`: every number of a normalization, of a table or of an example."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import click
import numpy as np
from numpy.typing import NDArray

import truenorm as tn
from truenorm.cli import Command
from truenorm.cli.numbers import NumberTable, parse_row, parse_table, parse_whole, read_table
from truenorm.core.norm import EpsAt, Norm
from truenorm.explanation import examples
from truenorm.explanation.steps import Explanation

Kind = Literal["batch", "layer", "instance", "group", "rms"]
Example = Literal["table", "sentences"]


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  truenorm explain --example table
  truenorm explain --example sentences
  truenorm explain data.csv --norm layer --dy gradient.csv
  truenorm explain padded.csv --lengths 2,4 --json
  printf '1,2\\n3,4\\n' | truenorm explain - --pattern "[b] c" --dy "1,0;0,0"
""",
)
@click.argument("file", required=False)
@click.option("--example", type=click.Choice(get_args(Example)), help="An example instead of a file.")
@click.option("--norm", "kind", type=click.Choice(get_args(Kind)), help="Which normalization.  [default: batch]")
@click.option("--pattern", help="A pattern of your own instead of --norm, such as '[b] c' or 'b [t] c'.")
@click.option("--groups", type=int, help="Groups of columns (the size of g).  [default: 1]")
@click.option("--lengths", help="The rows are padded sequences of equal extent with these lengths: 2,4.")
@click.option("--eps", type=float, default=1e-5, show_default=True)
@click.option("--ddof", type=int, default=0, help="1 divides by n - 1.", show_default=True)
@click.option(
    "--eps-at", type=click.Choice(get_args(EpsAt)), default="var", show_default=True, help="sqrt(var + eps), std + eps."
)
@click.option("--weight", help="One number for each column: 1,2,3.")
@click.option("--bias", help="One number for each column: 0,0,1.")
@click.option("--dy", help="The gradient at the output, to explain the backward pass: a CSV file, or '1,0;0,1'.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def command(
    file: str | None,
    example: Example | None,
    kind: Kind | None,
    pattern: str | None,
    groups: int | None,
    lengths: str | None,
    eps: float,
    ddof: Literal[0, 1],
    eps_at: EpsAt,
    weight: str | None,
    bias: str | None,
    dy: str | None,
    as_json: bool,
) -> None:
    """Show every number of a normalization, forward and backward.

    FILE is a CSV file with one row of numbers a line, or - for standard input; its first line may name the columns.
    Rows are examples (b) or positions of sequences (t), columns are channels (c).
    """
    if dy == "-" and example is None and file in (None, "-"):
        raise click.UsageError("Standard input can hold the input or --dy, not both.")
    chosen = any(option is not None for option in (kind, pattern, lengths, weight, bias, dy, groups))
    if example == "sentences" and file is None and not chosen:
        from truenorm.cli.comparison import show_comparison

        show_comparison(eps, as_json=as_json)
        return
    table, rows = _input(file, example)
    counts = None if lengths is None else parse_whole(lengths, "--lengths")
    if counts is None and example == "sentences":
        counts = np.array(examples.LENGTHS)
    norm = _norm(kind, pattern, groups, eps=eps, ddof=ddof, eps_at=eps_at)
    if kind == "instance" and counts is None:
        raise click.UsageError(
            "instance normalization averages over the positions of a sequence, and the rows are examples. "
            f"Give --lengths {len(table.values)} to make them one sequence."
        )
    shown = tn.explain(
        _sequences(table.values, counts, "the input"),
        norm,
        lengths=counts,
        weight=None if weight is None else parse_row(weight, "--weight"),
        bias=None if bias is None else parse_row(bias, "--bias"),
        dy=None if dy is None else _sequences(_gradient(dy), counts, "--dy"),
    )
    *leading, last = shown.steps[0].axes
    _print(replace(shown, labels={last: table.columns, " ".join(leading): rows}), as_json)


def _input(file: str | None, example: Example | None) -> tuple[NumberTable, tuple[str, ...]]:
    """The numbers, and names for their rows."""
    if file is not None and example is not None:
        raise click.UsageError("Give a file or --example, not both.")
    if example == "table":
        return NumberTable(examples.TABLE, examples.TABLE_COLUMNS), ()
    if example == "sentences":
        return NumberTable(examples.SENTENCES.reshape(-1, 3), ()), examples.TOKENS
    if file is None and sys.stdin.isatty():
        raise click.UsageError("Give a CSV file, - for standard input, or --example table.")
    return read_table(file or "-"), ()


def _norm(kind: Kind | None, pattern: str | None, groups: int | None, **options: Any) -> Norm:
    if kind is not None and pattern is not None:
        raise click.UsageError("Give --norm or --pattern, not both.")
    if pattern is not None:
        return Norm(pattern, sizes={} if groups is None else {"g": groups}, **options)
    if kind == "group":
        return tn.group(1 if groups is None else groups, **options)
    if groups is not None:
        raise click.UsageError("--groups goes with --norm group, or with a --pattern that has an axis g.")
    recipes = {"batch": tn.batch, "layer": tn.layer, "instance": tn.instance, "rms": tn.rms}
    return recipes[kind or "batch"](**options)


def _sequences(values: NDArray[np.float64], counts: NDArray[np.int64] | None, name: str) -> NDArray[np.float64]:
    """Rows as sequences of equal extent, where lengths are given."""
    if counts is None:
        return values
    if len(values) % len(counts):
        raise click.UsageError(
            f"--lengths: {len(counts)} sequences of equal extent, got {len(values)} rows in {name}. "
            "Pad the shorter sequences with rows of zeros."
        )
    return values.reshape(len(counts), -1, values.shape[1])


def _gradient(dy: str) -> NDArray[np.float64]:
    """A CSV file, or rows written out: '1,0;0,1'."""
    if Path(dy).exists() or dy == "-":
        return read_table(dy).values
    if not any(letter.isdigit() for letter in dy) or Path(dy).suffix in (".csv", ".tsv", ".txt"):
        return read_table(dy).values  # says that there is no such file
    return parse_table(dy.replace(";", "\n"), "--dy").values


def _print(shown: Explanation, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(shown.as_dict(), indent=2, ensure_ascii=False, allow_nan=False))
        return
    from truenorm.explanation.text import Screen, show  # loads rich, which --json does not need

    show(shown, Screen())
