"""An array as a small table of words: what `text` and `html` have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from truenorm.explanation import Explanation, Step

LEFT_OUT = "·"
MOST_ROWS, MOST_COLUMNS = 16, 8


@dataclass(frozen=True)
class Cells:
    """A header, and rows that start with their label."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str  # what was not shown


def cells_of(step: Step, labels: Mapping[str, Sequence[str]]) -> Cells:
    """The values of a step, last axis across, with the first and last of what is too many."""
    values = np.atleast_2d(step.values.reshape(-1, step.values.shape[-1]) if step.values.ndim else step.values)
    gone = np.zeros(values.shape, bool) if step.left_out is None else step.left_out.reshape(values.shape)
    words = _format(values, gone)
    columns = _column_names(step, values.shape[1], labels)
    rows = _row_names(step, values.shape[0], labels)
    shown_rows, shown_columns = _few(len(rows), MOST_ROWS), _few(len(columns), MOST_COLUMNS)
    left = (("rows", len(rows), shown_rows), ("columns", len(columns), shown_columns))
    hidden = [f"{len(shown) - 1} of {total} {what}" for what, total, shown in left if None in shown]

    def pick(names: Sequence[str], shown: Sequence[int | None]) -> tuple[str, ...]:
        return tuple("…" if i is None else names[i] for i in shown)

    lines = tuple(
        ("…",) * (len(shown_columns) + 1) if i is None else (rows[i], *pick(words[i], shown_columns))
        for i in shown_rows
    )
    return Cells(("", *pick(columns, shown_columns)), lines, ", ".join(hidden))


def headline(explanation: Explanation) -> str:
    """What is averaged, in a sentence."""
    over = " and ".join(explanation.averaged)
    each = f"one for each {' and '.join(explanation.kept)}" if explanation.kept else "one for all"
    what = "mean and variance" if explanation.norm.center else "mean square"
    shape = " x ".join(map(str, explanation.shape))
    return f"{explanation.norm!r} of {shape} values: a {what} over {over}, {each}"


def left_out_line(explanation: Explanation) -> str:
    """Which elements were left out, or that none was."""
    places = explanation.left_out
    if not places:
        return f"All {explanation.elements} elements are real."
    shown = ", ".join(str(list(place)) for place in places[:12]) + (", …" if len(places) > 12 else "")
    return f"Left out, as they are not real ({LEFT_OUT} in the tables): {len(places)} places, {shown}."


def number(value: float) -> str:
    """One number, as in the tables."""
    return _format(np.array([[value]]), np.zeros((1, 1), bool))[0][0]


def _format(values: NDArray[np.floating], gone: NDArray[np.bool_]) -> list[list[str]]:
    """Six digits of the largest number, the same decimals for all; whole numbers stay whole."""
    real = np.abs(values[~gone & np.isfinite(values)]).astype(float)
    largest = real.max(initial=0.0)
    if not (real % 1).any() and largest < 1e7:
        style = ".0f"
    elif 1e-3 <= largest < 1e7:
        style = f".{min(max(5 - math.floor(math.log10(largest)), 0), 6)}f"
    else:
        style = ".5e"
    words = [[format(float(value) + 0.0, style) for value in row] for row in values]
    return [
        [LEFT_OUT if out else word for word, out in zip(*pair, strict=True)] for pair in zip(words, gone, strict=True)
    ]


def _few(total: int, most: int) -> list[int | None]:
    """All of them, or the first and the last with None between."""
    if total <= most:
        return list(range(total))
    return [*range(most - 3), None, total - 2, total - 1]


def _column_names(step: Step, count: int, labels: Mapping[str, Sequence[str]]) -> list[str]:
    if not step.axes:
        return [""]
    last = step.axes[-1]
    names = labels.get("columns", ())
    if last == "c" and len(names) == count:
        return list(names)
    return [f"{last}{i}" if last.isidentifier() else str(i) for i in range(count)]


def _row_names(step: Step, count: int, labels: Mapping[str, Sequence[str]]) -> list[str]:
    names, axes = labels.get("rows", ()), step.axes[:-1]
    if not axes:
        return [""] * count
    if len(names) == count:
        return list(names)
    places = np.ndindex(step.values.shape[:-1])
    return [" ".join(f"{name}{i}" for name, i in zip(axes, place, strict=True)) for place in places]
