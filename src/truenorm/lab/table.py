"""Tables: a CSV file with a header and numbers in every column. The target column may hold classes instead."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truenorm.core.norm import batch
from truenorm.engine import measure, merge

Array = NDArray[Any]
# A numeric target has classes if it has at most so many different values, each at least twice on average.
MAX_NUMERIC_CLASSES = 20


@dataclass(frozen=True)
class Table:
    """Features, one target for each row, and the class names (None for a regression)."""

    columns: tuple[str, ...]
    features: Array
    targets: Array
    classes: tuple[str, ...] | None


def read_csv(path: Path, target: str) -> Table:
    """Read and check a table. Errors name the line and the column."""
    header, rows = _read(path)
    if target not in header:
        raise ValueError(f"--target: one of the columns {', '.join(header)}, got {target!r}.")
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise ValueError(f"{path}: column names must be unique, got {twice!r} twice.")
    if len(header) < 2:
        raise ValueError(f"{path}: needs at least one column beside {target!r}, got none.")
    if len(rows) < 4:
        raise ValueError(f"{path}: needs at least four rows below the header, got {len(rows)}.")
    at = header.index(target)
    columns = tuple(name for name in header if name != target)

    def cell_error(line: int, name: str, expected: str, got: str) -> ValueError:
        return ValueError(f"{path}: column {name!r} needs {expected}, got {got!r} in line {line}.")

    features = np.empty((len(rows), len(columns)))
    for row, (line, cells) in zip(features, rows, strict=True):
        if len(cells) != len(header):
            raise ValueError(f"{path}: each row needs {len(header)} cells, got {len(cells)} in line {line}.")
        row[:] = [_number(cell) for i, cell in enumerate(cells) if i != at]
        for name, value, cell in zip(columns, row, cells[:at] + cells[at + 1 :], strict=True):
            if not np.isfinite(value):
                raise cell_error(line, name, "finite numbers", cell)
    target_cells = [(line, cells[at].strip()) for line, cells in rows]
    return Table(columns, features, *_targets(target_cells, partial(cell_error, name=target)))


def _targets(
    cells: list[tuple[int, str]], cell_error: Callable[..., ValueError]
) -> tuple[Array, tuple[str, ...] | None]:
    """The targets as numbers, or as class indices with the class names."""
    numbers = np.array([_number(cell) for _, cell in cells])
    numeric = np.isfinite(numbers)
    for (line, cell), is_numeric in zip(cells, numeric, strict=True):
        if not cell:
            raise cell_error(line=line, expected="a class or a number in every row", got=cell)
        if not is_numeric and numeric.mean() > 0.5:  # a typing error among numbers, not a class
            raise cell_error(line=line, expected="finite numbers, as in most rows", got=cell)
    if numeric.all():
        distinct, indices = np.unique(numbers, return_inverse=True)
        if len(distinct) > min(MAX_NUMERIC_CLASSES, len(cells) // 2):
            return numbers, None
        classes = tuple(f"{value:g}" for value in distinct)  # 1 and 1.0 are one class
    else:
        names, indices = np.unique([cell for _, cell in cells], return_inverse=True)
        classes = tuple(map(str, names))
    if len(classes) < 2:
        raise ValueError(f"--target: needs at least two classes, got only {classes[0]!r}.")
    return indices, classes


def _read(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header, and the rows with their line numbers. Blank lines are skipped."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except UnicodeDecodeError:
        raise ValueError(f"{path}: must be UTF-8 text, got invalid bytes.") from None
    except csv.Error as error:
        raise ValueError(f"{path}: cannot be read as CSV ({error}).") from None
    if not lines:
        raise ValueError(f"{path}: needs a header and rows, got an empty file.")
    return lines[0][1], lines[1:]


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return np.nan


def standardize(train: Array, *others: Array, chunk: int = 1024) -> list[Array]:
    """Scale columns to mean 0 and std 1 over the training set. Its moments are measured in chunks and merged."""
    chunks = [measure(train[start : start + chunk], batch()) for start in range(0, len(train), chunk)]
    moments = merge(*chunks)
    std = np.sqrt(moments.var())
    return [(one - moments.mean) / np.where(std > 0, std, 1.0) for one in (train, *others)]


def standardize_targets(train: Array, *others: Array) -> tuple[list[Array], float]:
    """Scale targets to mean 0 and std 1 over the training set; also return the std that they were divided by."""
    scaled = [one[:, 0] for one in standardize(train[:, None], *(one[:, None] for one in others))]
    return scaled, float(np.sqrt(measure(train[:, None], batch()).var()[0])) or 1.0
