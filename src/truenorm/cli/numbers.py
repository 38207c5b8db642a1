"""Read numbers from CSV files, standard input, and options such as 2,4."""

from __future__ import annotations

import csv
import io
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class NumberTable:
    """A table of numbers, and the column names if the first line has them."""

    values: Array
    columns: tuple[str, ...]


def read_table(source: str) -> NumberTable:
    """A CSV file, or standard input for "-". Errors name the line and the column."""
    name = "standard input" if source == "-" else source
    data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: must be UTF-8 text, got byte {data[error.start]:#04x} at {error.start}.") from None
    return parse_table(text, name)


def parse_table(text: str, name: str) -> NumberTable:
    """Lines of numbers separated by commas, tabs, semicolons or spaces; the first line may name the columns."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    space_separated = all(_is_number(word) for word in first.split())
    delimiter = next((mark for mark in ",\t;" if mark in first), " " if space_separated else ",")
    reader = csv.reader((line.strip(" \r\n") for line in io.StringIO(text)), delimiter=delimiter, skipinitialspace=True)
    lines = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    if not lines:
        raise ValueError(f"{name}: needs at least one line of numbers, got none. Separate the numbers by commas.")
    columns: tuple[str, ...] = ()
    if not any(_is_number(cell) for cell in lines[0][1]):
        columns = tuple(cell.strip() for cell in lines.pop(0)[1])
        if not lines:
            raise ValueError(f"{name}: needs lines of numbers below the column names {', '.join(columns)}, got none.")
    width, expected_by = (len(columns), 1) if columns else (len(lines[0][1]), lines[0][0])
    rows = []
    for number, cells in lines:
        if len(cells) != width:
            raise ValueError(
                f"{name}, line {number}: needs {width} columns as in line {expected_by}, got {len(cells)}."
            )
        for column, cell in enumerate(cells, 1):
            if not _is_number(cell):
                where = f"{name}, line {number}, column {column}"
                raise ValueError(f"{where}: needs a number, got {cell.strip()!r}. Only the first line may hold names.")
        rows.append([float(cell) for cell in cells])
    return NumberTable(np.array(rows), columns)


def parse_row(text: str, option: str) -> Array:
    """Numbers separated by commas, such as 2,4."""
    cells = text.split(",")
    for column, cell in enumerate(cells, 1):
        if not _is_number(cell):
            raise ValueError(f"{option}: needs numbers separated by commas, got {cell.strip()!r} as number {column}.")
    return np.array([float(cell) for cell in cells])


def parse_integers(text: str, option: str) -> NDArray[np.int64]:
    """Integers separated by commas."""
    row = parse_row(text, option)
    if not np.array_equal(row, np.floor(row)) or not np.isfinite(row).all():
        raise ValueError(f"{option}: needs integers separated by commas, got {text!r}.")
    return row.astype(np.int64)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
