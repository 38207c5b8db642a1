"""Tables: a CSV file with a header and numbers in every column. The target column may hold classes instead."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, FiniteFloat, model_validator

from truenorm.core.recipes import batch
from truenorm.engine import measure, merge
from truenorm.lab.text_file import csv_rows, read_text

Array = NDArray[Any]
Row = tuple[int, list[str]]  # the number of a line, and its cells
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
    header, rows = read_rows(read_text(path), str(path))
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
    for line, cells in rows:
        if len(cells) != len(header):
            raise ValueError(f"{path}: each row needs {len(header)} cells, got {len(cells)} in line {line}.")
    columns = tuple(name for name in header if name != target)
    features = numbers_of(header, rows, columns, str(path))
    target_cells = [(line, cells[at].strip()) for line, cells in rows]
    return Table(columns, features, *_targets(target_cells, partial(_cell_error, str(path), name=target)))


def numbers_of(header: Sequence[str], rows: Sequence[Row], columns: Sequence[str], name: str) -> Array:
    """The numbers in these columns of a table. `name` is that of the file, for messages."""
    places = [header.index(column) for column in columns]
    numbers = np.empty((len(rows), len(columns)))
    for row, (line, cells) in zip(numbers, rows, strict=True):
        row[:] = values = [to_number(cells[place]) for place in places]
        for column, value, place in zip(columns, values, places, strict=True):
            if (expected := expected_instead(value)) is not None:
                raise _cell_error(name, line=line, name=column, expected=expected, got=cells[place])
    return numbers


def expected_instead(value: float) -> str | None:
    """What a column needs instead of this number; None if it can be used.

    >>> expected_instead(1e200), expected_instead(math.nan), expected_instead(7.5)
    ('numbers from -1e+150 to 1e+150', 'finite numbers', None)
    """
    if -MAX_NUMBER <= value <= MAX_NUMBER:
        return None
    return IN_RANGE if math.isfinite(value) else "finite numbers"


def _cell_error(path: str, *, line: int, name: str, expected: str, got: str) -> ValueError:
    return ValueError(f"{path}: column {name!r} needs {expected}, got {got!r} in line {line}.")


def _targets(
    cells: list[tuple[int, str]], cell_error: Callable[..., ValueError]
) -> tuple[Array, tuple[str, ...] | None]:
    """The targets as numbers, or as class indices with the class names."""
    numbers = np.array([to_number(cell) for _, cell in cells])
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


def read_rows(text: str, name: str) -> tuple[list[str], list[Row]]:
    """The header, and the rows with their line numbers. Blank lines are skipped."""
    lines = list(csv_rows(text, name))
    if not lines:
        raise ValueError(f"{name}: needs a header and rows, got an empty file.")
    return lines[0][1], lines[1:]


def to_number(cell: str) -> float:
    """The number in a cell; NaN if it is none."""
    try:
        return float(cell)
    except ValueError:
        return math.nan


@dataclass(frozen=True)
class Scale:
    """Scales columns to mean 0 and std 1. Of a constant column, only the mean is subtracted."""

    mean: Array
    std: Array

    @classmethod
    def of(cls, train: Array, chunk: int = 1024) -> Scale:
        """The scale of a training set. Its moments are measured in chunks and merged."""
        moments = merge(*(measure(train[start : start + chunk], batch()) for start in range(0, len(train), chunk)))
        std = np.sqrt(moments.var())
        return cls(moments.mean, np.where(std > 0, std, 1.0))

    def apply(self, x: Array) -> Array:
        scaled: Array = (x - self.mean) / self.std
        return scaled


class Columns(BaseModel):
    """What is needed to predict rows of a table with a trained network. A checkpoint holds it.

    names                     of the features, in the order of the network's inputs
    mean, std                 by which the features are scaled; None: they are not
    classes                   of a classification
    target_mean, target_std   of a regression: its outputs are scaled back
    """

    model_config = ConfigDict(frozen=True)

    names: tuple[str, ...]
    mean: tuple[FiniteFloat, ...] | None
    std: tuple[FiniteFloat, ...] | None
    classes: tuple[str, ...] | None
    target_mean: FiniteFloat = 0.0
    target_std: FiniteFloat = 1.0

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if not self.names:
            raise ValueError("at least one name")
        if any(scale is not None and len(scale) != len(self.names) for scale in (self.mean, self.std)):
            raise ValueError("as many means and stds as names")
        return self

    def inputs(self, features: Array, dtype: str) -> Array:
        """The inputs of the network."""
        if self.mean is not None and self.std is not None:
            features = Scale(np.array(self.mean), np.array(self.std)).apply(features)
        with np.errstate(over="ignore"):
            return features.astype(dtype)
