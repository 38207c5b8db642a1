"""The values of a step as a table of strings, for `text` and `html`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from truenorm.explanation.terminal import printable

if TYPE_CHECKING:
    from truenorm.explanation.step import Step

INVALID = "·"
MAX_ROWS, MAX_COLUMNS = 16, 8


@dataclass(frozen=True)
class Cells:
    """A header, and rows that start with their label."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str  # how much of a large array is shown

    @property
    def width(self) -> int:
        """The width in characters, with two spaces between columns."""
        columns = zip(self.header, *self.rows, strict=True)
        return sum(max(map(len, column)) + 2 for column in columns) - 2


def cells_of(step: Step, labels: Mapping[str, Sequence[str]], *, max_columns: int = MAX_COLUMNS) -> Cells:
    """The values of a step, with the last axis across. Of a large array only the first and last rows and columns."""
    values = np.atleast_2d(step.values.reshape(-1, step.values.shape[-1]) if step.values.ndim else step.values)
    invalid = np.zeros(values.shape, bool) if step.invalid is None else step.invalid.reshape(values.shape)
    columns, rows = _column_names(step, values.shape[1], labels), _row_names(step, values.shape[0], labels)
    shown_rows, shown_columns = _first_and_last(len(rows), MAX_ROWS), _first_and_last(len(columns), max_columns)
    picked = [i for i in shown_rows if i is not None]
    across = [
        ["…"] * len(picked) if j is None else _format(values[picked, j], invalid[picked, j]) for j in shown_columns
    ]
    lines = iter(zip(*across, strict=True)) if across else iter(() for _ in picked)
    cells = tuple(("…",) * (len(across) + 1) if i is None else (rows[i], *next(lines)) for i in shown_rows)
    sizes = (("rows", len(rows), shown_rows), ("columns", len(columns), shown_columns))
    hidden = [f"{len(shown) - 1} of {total} {what}" for what, total, shown in sizes if None in shown]
    return Cells(("", *("…" if j is None else columns[j] for j in shown_columns)), cells, ", ".join(hidden))


def fitting_cells(step: Step, labels: Mapping[str, Sequence[str]], width: int) -> Cells:
    """As many columns as fit into the width, so that no number is cut off."""
    for columns in range(MAX_COLUMNS, 2, -1):
        cells = cells_of(step, labels, max_columns=columns)
        if cells.width <= width:
            break
    return cells


def number(value: float) -> str:
    """One number, formatted as in the tables."""
    return _format(np.array([value]), np.zeros(1, bool))[0]


def _format(values: NDArray[np.floating], invalid: NDArray[np.bool_]) -> list[str]:
    """Format one column. Integers have no decimals. Otherwise all numbers have the same number of decimals, so that the
    largest has six digits, if that leaves the smallest at least three; if not, each has six digits."""
    sizes = np.abs(values[~invalid & np.isfinite(values)]).astype(float)
    largest = sizes.max(initial=0.0)
    smallest = sizes[sizes > 0].min(initial=np.inf)
    decimals = 5 - math.floor(math.log10(largest)) if largest > 0 else 0
    if largest < 1e7 and not (sizes % 1).any():
        style = ".0f"
    elif 0 <= decimals <= 8 and smallest >= 10.0 ** (2 - decimals):
        style = f".{decimals}f"
    else:
        style = ".6g"
    pairs = zip(values, invalid, strict=True)
    return [INVALID if hidden else format(float(value) + 0.0, style) for value, hidden in pairs]


def _first_and_last(total: int, limit: int) -> list[int | None]:
    """All indices; or the first ones, None, and the last two if there is room for them."""
    if total <= limit:
        return list(range(total))
    last = [total - 2, total - 1] if limit >= 5 else []
    return [*range(limit - 1 - len(last)), None, *last]


def _column_names(step: Step, count: int, labels: Mapping[str, Sequence[str]]) -> list[str]:
    if not step.axes:
        return [""]
    last = step.axes[-1]
    names = labels.get(last, ())
    if len(names) == count:
        return [printable(name) for name in names]
    return [f"{last}{i}" if last.isidentifier() else str(i) for i in range(count)]


def _row_names(step: Step, count: int, labels: Mapping[str, Sequence[str]]) -> list[str]:
    axes = step.axes[:-1]
    names = labels.get(" ".join(axes), ())
    if axes and len(names) == count:
        return [printable(name) for name in names]
    places = np.ndindex(step.values.shape[:-1])
    return [" ".join(f"{name}{i}" for name, i in zip(axes, place, strict=True)) for place in places]
