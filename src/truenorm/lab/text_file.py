"""Read text and CSV files that may be anything: too large, not text, not CSV. Errors name the file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

MAX_BYTES = 64 << 20  # of a file; its words or cells take about ten times as much memory


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """The text of a UTF-8 file of at most `limit` bytes."""
    with path.open("rb") as file:
        return text_of(file, str(path), limit)


def text_of(file: BinaryIO, name: str, limit: int = MAX_BYTES) -> str:
    """The text of an open file. `name` is for messages. At most `limit` bytes are read, also from an endless device."""
    data = bytearray()
    try:
        while len(data) <= limit and (part := file.read(1 << 20)):
            data += part
    except OSError as error:
        raise OSError(error.errno, error.strerror, name) from None
    if len(data) > limit:
        raise ValueError(f"{name}: must be at most {limit >> 20} MiB, got more.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: must be UTF-8 text, got byte {data[error.start]:#04x} at {error.start}.") from None
    if (zero := data.find(0)) >= 0:
        raise ValueError(f"{name}: must be UTF-8 text, got byte 0x00 at {zero}.")
    return text


def csv_rows(text: str, name: str, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV text with their line numbers, without blank lines. Cells have no surrounding spaces.

    >>> list(csv_rows("a, b\\r\\r1,2\\n", "file.csv"))
    [(1, ['a', 'b']), (3, ['1', '2'])]
    """
    lines: Iterable[str] = io.StringIO(text, newline=None)  # None: "\r" ends a line, too
    if delimiter == " ":
        lines = (line.strip(" \n") for line in lines)  # spaces at the ends separate nothing
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
    try:
        for cells in reader:
            stripped = [cell.strip() for cell in cells]
            if stripped not in ([], [""]):
                yield reader.line_num, stripped
    except csv.Error as error:
        raise ValueError(f"{name}, line {reader.line_num}: cannot be read as CSV ({error}).") from None
