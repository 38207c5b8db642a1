"""Tables: a CSV file with a header and numbers in every column. The target column may hold classes instead."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truenorm.core.norm import batch
from truenorm.engine import measure, merge
from truenorm.lab.text_file import csv_rows, read_text

Array = NDArray[Any]
# A numeric target has classes if it has at most so many different values, each at least twice on average.
MAX_NUMERIC_CLASSES = 20
MAX_NAMES = 20  # of columns in a message
# The squares of larger numbers overflow, and with them the std by which columns are divided.
MAX_NUMBER = 1e150
STUDENTS_FILE = Path(__file__).with_name("students.csv")  # invented people, made by tools/students.py
IN_RANGE = f"numbers from -{MAX_NUMBER:g} to {MAX_NUMBER:g}"


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
        names = " ".join(", ".join(header[:MAX_NAMES]).split())  # a quoted name may have several lines
        names += ", ..." if len(header) > MAX_NAMES else ""
        raise ValueError(f"--target: one of the columns {names}, got {target!r}.")
    counts = Counter(header)
    if len(counts) < len(header):
        twice = next(name for name in header if counts[name] > 1)
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
        others = cells[:at] + cells[at + 1 :]
        row[:] = values = [_number(cell) for cell in others]
        for name, value, cell in zip(columns, values, others, strict=True):
            if not -MAX_NUMBER <= value <= MAX_NUMBER:
                raise cell_error(line, name, IN_RANGE if math.isfinite(value) else "finite numbers", cell)
    target_cells = [(line, cells[at].strip()) for line, cells in rows]
    return Table(columns, features, *_targets(target_cells, partial(cell_error, name=target)))


def _targets(
    cells: list[tuple[int, str]], cell_error: Callable[..., ValueError]
) -> tuple[Array, tuple[str, ...] | None]:
    """The targets as numbers, or as class indices with the class names."""
    numbers = np.array([_number(cell) for _, cell in cells])
    numeric = np.isfinite(numbers)
    mostly_numeric = numeric.mean() > 0.5
    for (line, cell), is_numeric in zip(cells, numeric, strict=True):
        if not cell:
            raise cell_error(line=line, expected="a class or a number in every row", got=cell)
        if not is_numeric and mostly_numeric:  # a typing error among numbers, not a class
            raise cell_error(line=line, expected="finite numbers, as in most rows", got=cell)
    if numeric.all():
        distinct, indices = np.unique(numbers, return_inverse=True)
        if len(distinct) > min(MAX_NUMERIC_CLASSES, len(cells) // 2):
            for (line, cell), number in zip(cells, numbers, strict=True):
                if abs(number) > MAX_NUMBER:
                    raise cell_error(line=line, expected=IN_RANGE, got=cell)
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
    lines = list(csv_rows(read_text(path), str(path)))
    if not lines:
        raise ValueError(f"{path}: needs a header and rows, got an empty file.")
    return lines[0][1], lines[1:]


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


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
