"""Tables to learn from: a CSV with a header, numbers in all columns but the target, which holds classes or numbers."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truenorm.core.norm import batch
from truenorm.engine import measure, merge

Array = NDArray[Any]
FEW = 20  # different numbers in a target are classes, if each comes twice or more on average; more are numbers


@dataclass(frozen=True)
class Table:
    """Features, a target for each row, and the classes' names (None: targets are numbers)."""

    columns: tuple[str, ...]
    features: Array
    targets: Array
    classes: tuple[str, ...] | None


def read_csv(path: Path, target: str) -> Table:
    """Read and checked; what is wrong is told with its line and column."""
    header, rows = _read(path)
    if target not in header:
        raise ValueError(f"--target: one of the columns {', '.join(header)}, got {target!r}.")
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise ValueError(f"{path}: columns of different names, got {twice!r} twice.")
    if len(header) < 2:
        raise ValueError(f"{path}: at least one column beside {target!r}, got none.")
    if len(rows) < 4:
        raise ValueError(f"{path}: at least four rows under the header, got {len(rows)}.")
    at = header.index(target)
    columns = tuple(name for name in header if name != target)

    def told(line: int, name: str, wanted: str, got: str) -> ValueError:
        return ValueError(f"{path}: {wanted} in column {name!r}, got {got!r} in line {line}.")

    features = np.empty((len(rows), len(columns)))
    for row, (line, cells) in zip(features, rows, strict=True):
        if len(cells) != len(header):
            raise ValueError(f"{path}: {len(header)} cells in each row, got {len(cells)} in line {line}.")
        row[:] = [_number(cell) for i, cell in enumerate(cells) if i != at]
        for name, value, cell in zip(columns, row, cells[:at] + cells[at + 1 :], strict=True):
            if not np.isfinite(value):
                raise told(line, name, "a finite number", cell)
    words = [(line, cells[at].strip()) for line, cells in rows]
    return Table(columns, features, *_targets(words, lambda *what: told(what[0], target, *what[1:])))


def _targets(
    words: list[tuple[int, str]], told: Callable[[int, str, str], ValueError]
) -> tuple[Array, tuple[str, ...] | None]:
    """As numbers or as numbers of classes, and the classes."""
    numbers = np.array([_number(word) for _, word in words])
    known = np.isfinite(numbers)
    for (line, word), fine in zip(words, known, strict=True):
        if not word:
            raise told(line, "a class or a number", word)
        if not fine and known.mean() > 0.5:  # a slip among numbers, not a class
            raise told(line, "a finite number, as in most rows,", word)
    if known.all():
        different, places = np.unique(numbers, return_inverse=True)
        if len(different) > min(FEW, len(words) // 2):
            return numbers, None
        classes = tuple(f"{value:g}" for value in different)  # 1 and 1.0 are one class
    else:
        found, places = np.unique([word for _, word in words], return_inverse=True)
        classes = tuple(map(str, found))
    if len(classes) < 2:
        raise ValueError(f"--target: at least two classes, got {classes[0]!r} alone.")
    return places, classes


def _read(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header, and the rows with the numbers of their lines; blank lines are left out."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except UnicodeDecodeError:
        raise ValueError(f"{path}: text in UTF-8, got bytes that are not.") from None
    except csv.Error as error:
        raise ValueError(f"{path}: a CSV, got one that cannot be read ({error}).") from None
    if not lines:
        raise ValueError(f"{path}: a header and rows, got an empty file.")
    return lines[0][1], lines[1:]


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return np.nan


def standardized(train: Array, *others: Array, part: int = 1024) -> list[Array]:
    """Columns of mean 0 and deviation 1 over the training set, measured part by part and merged."""
    parts = [measure(train[start : start + part], batch()) for start in range(0, len(train), part)]
    whole = merge(*parts)
    deviation = np.sqrt(whole.var())
    return [(one - whole.mean) / np.where(deviation > 0, deviation, 1.0) for one in (train, *others)]


def standardized_targets(train: Array, *others: Array) -> tuple[list[Array], float]:
    """Numbers of mean 0 and deviation 1 over the training set, and what they were divided by."""
    found = [one[:, 0] for one in standardized(train[:, None], *(one[:, None] for one in others))]
    return found, float(np.sqrt(measure(train[:, None], batch()).var()[0])) or 1.0
