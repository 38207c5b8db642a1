"""An array as a small table of words: what `text` and `html` have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from truenorm.explanation.steps import Explanation, Step

LEFT_OUT = "·"
MOST_ROWS, MOST_COLUMNS = 16, 8


@dataclass(frozen=True)
class Cells:
    """A header, and rows that start with their label."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str  # what was not shown

    @property
    def width(self) -> int:
        """How wide the table is, with two spaces between columns."""
        columns = zip(self.header, *self.rows, strict=True)
        return sum(max(map(len, column)) + 2 for column in columns) - 2


def cells_of(step: Step, labels: Mapping[str, Sequence[str]], *, most_columns: int = MOST_COLUMNS) -> Cells:
    """The values of a step, last axis across, with the first and last of what is too many."""
    values = np.atleast_2d(step.values.reshape(-1, step.values.shape[-1]) if step.values.ndim else step.values)
    gone = np.zeros(values.shape, bool) if step.left_out is None else step.left_out.reshape(values.shape)
    columns, rows = _column_names(step, values.shape[1], labels), _row_names(step, values.shape[0], labels)
    shown_rows, shown_columns = _few(len(rows), MOST_ROWS), _few(len(columns), most_columns)
    picked = [i for i in shown_rows if i is not None]
    across = [["…"] * len(picked) if j is None else _format(values[picked, j], gone[picked, j]) for j in shown_columns]
    lines = iter(zip(*across, strict=True)) if across else iter(() for _ in picked)
    cells = tuple(("…",) * (len(across) + 1) if i is None else (rows[i], *next(lines)) for i in shown_rows)
    left = (("rows", len(rows), shown_rows), ("columns", len(columns), shown_columns))
    hidden = [f"{len(shown) - 1} of {total} {what}" for what, total, shown in left if None in shown]
    return Cells(("", *("…" if j is None else columns[j] for j in shown_columns)), cells, ", ".join(hidden))


def fitting_cells(step: Step, labels: Mapping[str, Sequence[str]], width: int) -> Cells:
    """As many columns as fit into the width: a number that is cut off would be another number."""
    for most in range(MOST_COLUMNS, 2, -1):
        cells = cells_of(step, labels, most_columns=most)
        if cells.width <= width:
            break
    return cells


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
        return f"Every element is counted: {explanation.elements} in all."
    shown = ", ".join(str(list(place)) for place in places[:12]) + (", …" if len(places) > 12 else "")
    what = "1 place" if len(places) == 1 else f"{len(places)} places"
    return f"Left out, as they are not valid ({LEFT_OUT} in the tables): {what}, {shown}."


def number(value: float) -> str:
    """One number, as in the tables."""
    return _format(np.array([value]), np.zeros(1, bool))[0]


def _format(values: NDArray[np.floating], gone: NDArray[np.bool_]) -> list[str]:
    """One column: six digits of its largest number and the same decimals for all, if the smallest keeps three; whole
    numbers stay whole; otherwise six digits of each."""
    real = np.abs(values[~gone & np.isfinite(values)]).astype(float)
    largest = real.max(initial=0.0)
    smallest = real[real > 0].min(initial=np.inf)
    decimals = 5 - math.floor(math.log10(largest)) if largest > 0 else 0
    if largest < 1e7 and not (real % 1).any():
        style = ".0f"
    elif 0 <= decimals <= 8 and smallest >= 10.0 ** (2 - decimals):
        style = f".{decimals}f"
    else:
        style = ".6g"
    return [LEFT_OUT if out else format(float(value) + 0.0, style) for value, out in zip(values, gone, strict=True)]


def _few(total: int, most: int) -> list[int | None]:
    """All of them, or the first ones and, if there is room, the last two, with None between."""
    if total <= most:
        return list(range(total))
    last = [total - 2, total - 1] if most >= 5 else []
    return [*range(most - 1 - len(last)), None, *last]


def _column_names(step: Step, count: int, labels: Mapping[str, Sequence[str]]) -> list[str]:
    if not step.axes:
        return [""]
    last = step.axes[-1]
    names = labels.get(last, ())
    if len(names) == count:
        return list(names)
    return [f"{last}{i}" if last.isidentifier() else str(i) for i in range(count)]


def _row_names(step: Step, count: int, labels: Mapping[str, Sequence[str]]) -> list[str]:
    axes = step.axes[:-1]
    names = labels.get(" ".join(axes), ())
    if axes and len(names) == count:
        return list(names)
    places = np.ndindex(step.values.shape[:-1])
    return [" ".join(f"{name}{i}" for name, i in zip(axes, place, strict=True)) for place in places]
