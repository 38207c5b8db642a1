"""The example sentences, normalized in three ways, and how far padding moves the word "How"."""

from __future__ import annotations

import json

import click
import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from truenorm.explanation import examples
from truenorm.explanation.cells import number
from truenorm.explanation.text import Screen

PADDING_ROWS = (2, 8, 32, 100)


def show_comparison(eps: float, *, as_json: bool = False) -> None:
    """Print the comparison, as tables or as JSON."""
    methods = examples.methods(eps)
    if as_json:
        click.echo(json.dumps(_as_dict(methods), indent=2))
        return
    over_all, over_valid = (_triple(method.normalize()[examples.HOW], 9, 6) for method in methods[:2])
    console = Screen()
    console.print(
        "Two sentences, one row per word. 'Hi Nitish' is padded with zeros to the length of 'How are you today'. "
        "Batch norm takes the mean and variance of each column, layer norm of each row.\n"
    )
    console.print(_side_by_side(methods))
    console.print("\nThe largest change of the row 'How', compared with no padding:\n")
    console.print(_changes(methods))
    console.print("\nThe row 'How' after batch norm:\n")
    console.print(f"  {over_all}   statistics over all 8 rows, padding included")
    console.print(f"  {over_valid}   over the 6 valid rows, as without padding")


def _side_by_side(methods: tuple[examples.Method, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for i, name in enumerate(("", "input", *(method.name.replace(", ", ",\n") for method in methods))):
        table.add_column(name, justify="right" if i else "left", no_wrap=True, vertical="bottom")
    normalized = [method.normalize().reshape(-1, 3) for method in methods]
    for token, x, *ys in zip(examples.TOKENS, examples.SENTENCES.reshape(-1, 3), *normalized, strict=True):
        style = {"How": "bold", "<pad>": "dim"}.get(token)
        table.add_row(Text(token), _triple(x, 4, 2), *(_triple(y, 5, 2) for y in ys), style=style)
    return table


def _changes(methods: tuple[examples.Method, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("number of padding rows", no_wrap=True)
    for padding in PADDING_ROWS:
        table.add_column(str(padding), justify="right", min_width=9)
    for method in methods:
        table.add_row(method.name, *(number(method.change(padding)) for padding in PADDING_ROWS))
    return table


def _triple(row: NDArray[np.float64], width: int, digits: int) -> str:
    return " ".join(f"{value + 0.0:{width}.{digits}f}" for value in row)


def _as_dict(methods: tuple[examples.Method, ...]) -> dict[str, object]:
    return {
        "tokens": list(examples.TOKENS),
        "lengths": list(examples.LENGTHS),
        "input": examples.SENTENCES.tolist(),
        "methods": [
            {
                "name": method.name,
                "norm": repr(method.norm),
                "lengths_given": method.uses_lengths,
                "y": method.normalize().tolist(),
                "how": method.normalize()[examples.HOW].tolist(),
                "change_of_how_by_padding_rows": {str(padding): method.change(padding) for padding in PADDING_ROWS},
            }
            for method in methods
        ],
    }
