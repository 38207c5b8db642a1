"""Read numbers from CSV files, standard input, and options such as 2,4."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from truenorm.lab.text_file import csv_rows, read_text, text_of

MAX_BYTES = 16 << 20  # of the input: every number is shown in about fifteen steps
MAX_INTEGER = 2**53  # up to here every integer is a float64
Array = NDArray[np.float64]


@dataclass(frozen=True)
class NumberTable:
    """A table of numbers, and the column names if the first line has them."""

    values: Array
    columns: tuple[str, ...]


def read_table(source: str) -> NumberTable:
    """A CSV file, or standard input for "-". Errors name the line and the column."""
    if source != "-":
        return parse_table(read_text(Path(source), MAX_BYTES), source)
    if sys.stdin is None:
        raise ValueError("standard input: is closed. Give a CSV file, or --example table.")
    return parse_table(text_of(sys.stdin.buffer, "standard input", MAX_BYTES), "standard input")


def parse_table(text: str, name: str) -> NumberTable:
    """Lines of numbers separated by commas, tabs, semicolons or spaces; the first line may name the columns."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    space_separated = all(_is_number(word) for word in first.split())
    delimiter = next((mark for mark in ",\t;" if mark in first), " " if space_separated else ",")
    lines = [(number, cells) for number, cells in csv_rows(text, name, delimiter) if any(cells)]
    if not lines:
        raise ValueError(f"{name}: needs at least one line of numbers, got none. Separate the numbers by commas.")
    columns: tuple[str, ...] = ()
    if not any(_is_number(cell) for cell in lines[0][1]):
        columns = tuple(lines.pop(0)[1])
        if not lines:
            names = " ".join(", ".join(columns).split())  # a quoted name may have several lines
            raise ValueError(f"{name}: needs lines of numbers below the column names {names}, got none.")
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
                raise ValueError(f"{where}: needs a number, got {cell!r}. Only the first line may hold names.")
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
    if not (np.array_equal(row, np.floor(row)) and (np.abs(row) <= MAX_INTEGER).all()):
        raise ValueError(f"{option}: needs integers separated by commas, got {text!r}.")
    return row.astype(np.int64)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
