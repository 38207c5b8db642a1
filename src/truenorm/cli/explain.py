"""`truenorm explain`: every number of a normalization, for a CSV file or an example."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import click
import numpy as np
from numpy.typing import NDArray

import truenorm as tn
from truenorm.cli import Command
from truenorm.cli.numbers import NumberTable, parse_integers, parse_row, parse_table, read_table
from truenorm.core.moments import Moments
from truenorm.core.norm import EpsAt, Norm
from truenorm.explanation import examples
from truenorm.explanation.steps import Explanation
from truenorm.explanation.terminal import printable

if TYPE_CHECKING:
    from truenorm.lab.explanation import NetworkExplanation

NormName = Literal["batch", "layer", "instance", "group", "rms"]
Example = Literal["table", "sentences", "network"]


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  truenorm explain --example table
  truenorm explain --example sentences
  truenorm explain --example network --words anna,otto --seed 3
  truenorm explain data.csv --norm layer --dy gradient.csv
  truenorm explain --example table --mean 4,4,4 --var 2,2,2
  truenorm explain padded.csv --lengths 2,4 --json
  printf '1,2\\n3,4\\n' | truenorm explain - --pattern "[b] c" --dy "1,0;0,0"
""",
)
@click.argument("file", required=False)
@click.option("--example", type=click.Choice(get_args(Example)), help="Use a built-in example instead of FILE.")
@click.option("--norm", "name", type=click.Choice(get_args(NormName)), help="The normalization.  [default: batch]")
@click.option("--pattern", help="A pattern instead of --norm, such as '[b] c' or 'b [t] c'.")
@click.option("--groups", type=int, help="Number of groups, for --norm group.  [default: 1]")
@click.option("--lengths", help="Treat the rows as padded sequences with these lengths: 2,4.")
@click.option("--eps", type=float, default=1e-5, show_default=True, help="ε, added to the variance σ².")
@click.option("--ddof", type=int, default=0, help="1: divide by n - 1 in the variance.", show_default=True)
@click.option(
    "--eps-at",
    type=click.Choice(get_args(EpsAt)),
    default="var",
    show_default=True,
    help="Divide by √(σ² + ε), or by σ + ε.",
)
@click.option("--weight", help="γ, which scales: one number for each column: 1,2,3.")
@click.option("--bias", help="β, which shifts: one number for each column: 0,0,1.")
@click.option("--mean", help="Use this μ instead of that of the rows, as in evaluation: one number for each column.")
@click.option("--var", help="The σ² that goes with --mean.")
@click.option("--dy", help="Gradient of the loss at the output, for the backward pass: a CSV file, or '1,0;0,1'.")
@click.option("--words", help="For --example network: words to learn, with commas between them.")
@click.option("--data", help="For --example network: a file with one word a line, or 'names'.")
@click.option("--hidden", type=int, help="For --example network: hidden units.  [default: 4]")
@click.option("--batch", type=int, help="For --example network: examples in the batch.  [default: 5]")
@click.option("--lr", type=float, help="For --example network: the learning rate.  [default: 0.1]")
@click.option("--seed", type=int, help="For --example network: of the first weights and the batch.  [default: 0]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    file: str | None,
    example: Example | None,
    name: NormName | None,
    pattern: str | None,
    groups: int | None,
    lengths: str | None,
    eps: float,
    ddof: Literal[0, 1],
    eps_at: EpsAt,
    weight: str | None,
    bias: str | None,
    mean: str | None,
    var: str | None,
    dy: str | None,
    as_json: bool,
    **of_network: Any,
) -> None:
    """Show every number of a normalization, forward and backward.

    FILE is a CSV file of numbers, or - for standard input. Its first line may hold column names. Rows are examples (b),
    or positions (t) of sequences if --lengths is given. Columns are channels (c).

    --example network shows one training step of a small network with batch norm: lookup table, hidden layer, norm,
    activation, softmax and loss, every gradient beside finite differences, and the update of every parameter.
    """
    given = {option: value for option, value in of_network.items() if value is not None}
    if example == "network":
        _refuse_others(given)
        from truenorm.cli.explain_network import explain_training_step  # imports the lab

        _print(explain_training_step(given), as_json)
        return
    if given:
        raise click.UsageError(f"--{next(iter(given))}: only with --example network.")
    if dy == "-" and example is None and file in (None, "-"):
        raise click.UsageError("Standard input can hold the input or --dy, not both.")
    chosen = any(option is not None for option in (name, pattern, lengths, weight, bias, mean, dy, groups))
    if example == "sentences" and file is None and not chosen:
        from truenorm.cli.padded_sentences import show_comparison

        show_comparison(eps, as_json=as_json)
        return
    table, rows = _input(file, example)
    sequence_lengths = None if lengths is None else parse_integers(lengths, "--lengths")
    if sequence_lengths is None and example == "sentences":
        sequence_lengths = np.array(examples.LENGTHS)
    norm = _norm(name, pattern, groups, eps=eps, ddof=ddof, eps_at=eps_at)
    if name == "instance" and sequence_lengths is None:
        raise click.UsageError(
            "--norm instance: averages over the positions of a sequence, but the rows are examples. "
            f"Give --lengths {len(table.values)} to make them one sequence."
        )
    shown = tn.explain(
        _sequences(table.values, sequence_lengths, "the input"),
        norm,
        lengths=sequence_lengths,
        weight=None if weight is None else parse_row(weight, "--weight"),
        bias=None if bias is None else parse_row(bias, "--bias"),
        moments=_given_moments(mean, var, norm),
        dy=None if dy is None else _sequences(_gradient(dy), sequence_lengths, "--dy"),
    )
    *leading, last = shown.steps[0].axes
    _print(replace(shown, labels={last: table.columns, " ".join(leading): rows}), as_json)


def _refuse_others(of_network: Mapping[str, Any]) -> None:
    """Raises an error for options that --example network does not take."""
    ctx = click.get_current_context()
    for parameter in ctx.command.params:
        name = parameter.name or ""
        if name in ("example", "as_json") or name in of_network:
            continue
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{parameter.opts[0]}: not with --example network.")


def _input(file: str | None, example: Example | None) -> tuple[NumberTable, tuple[str, ...]]:
    """The numbers, and the names of the rows."""
    if file is not None and example is not None:
        raise click.UsageError("Give a file or --example, not both.")
    if example == "table":
        return NumberTable(examples.TABLE, examples.TABLE_COLUMNS), ()
    if example == "sentences":
        return NumberTable(examples.SENTENCES.reshape(-1, 3), ()), examples.TOKENS
    if file is None and sys.stdin is not None and sys.stdin.isatty():
        raise click.UsageError("Give a CSV file, - for standard input, or --example table.")
    return read_table(file or "-"), ()


def _norm(name: NormName | None, pattern: str | None, groups: int | None, **options: Any) -> Norm:
    if name is not None and pattern is not None:
        raise click.UsageError("Give --norm or --pattern, not both.")
    if pattern is not None:
        return Norm(pattern, sizes={} if groups is None else {"g": groups}, **options)
    if name == "group":
        return tn.group(1 if groups is None else groups, **options)
    if groups is not None:
        raise click.UsageError("--groups: only with --norm group, or with a --pattern that has an axis g.")
    recipes = {"batch": tn.batch, "layer": tn.layer, "instance": tn.instance, "rms": tn.rms}
    return recipes[name or "batch"](**options)


def _sequences(values: NDArray[np.float64], lengths: NDArray[np.int64] | None, source: str) -> NDArray[np.float64]:
    """(rows, c) -> (b, t, c), if lengths are given."""
    if lengths is None:
        return values
    if len(values) % len(lengths):
        raise click.UsageError(
            f"--lengths: {len(values)} rows in {source} cannot be split into {len(lengths)} padded sequences of the "
            "same size. Pad the shorter sequences with rows of zeros."
        )
    return values.reshape(len(lengths), -1, values.shape[1])


def _given_moments(mean: str | None, var: str | None, norm: Norm) -> Moments | None:
    """The statistics of --mean and --var."""
    if mean is None and var is None:
        return None
    if mean is None or var is None:
        raise click.UsageError("Give --mean and --var, or neither.")
    means, variances = parse_row(mean, "--mean"), parse_row(var, "--var")
    if means.shape != variances.shape:
        raise click.UsageError(f"--var: as many numbers as --mean, {means.size}, got {variances.size}.")
    if not (variances >= 0).all():
        raise click.UsageError(f"--var: numbers >= 0, got {var}.")
    return Moments.from_variance(means, variances, ddof=norm.ddof)


def _gradient(dy: str) -> NDArray[np.float64]:
    """From a CSV file, or from the option itself: '1,0;0,1'."""
    if dy == "-" or os.path.exists(dy):  # Path.exists raises an error for text longer than a file name
        return read_table(dy).values
    if not any(letter.isdigit() for letter in dy) or Path(dy).suffix in (".csv", ".tsv", ".txt"):
        return read_table(dy).values  # raises an error that names the missing file
    return parse_table(dy.replace(";", "\n"), "--dy").values


def _print(shown: Explanation | NetworkExplanation, as_json: bool) -> None:
    if as_json:
        lines = json.dumps(shown.as_dict(), indent=2, ensure_ascii=False, allow_nan=False).split("\n")
        click.echo("\n".join(map(printable, lines)))
        return
    from truenorm.explanation.text import Screen, show  # imports rich, which --json does not need

    show(shown, Screen())
