"""Reading and using the page's table in a browser: what its tests share."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

EXAMPLE = [[7, 5, 4], [2, 3, 4], [1, 2, 3], [7, 5, 6], [3, 3, 4]]
NORMS = ("batch", "layer", "instance", "group", "rms")


def part(page: Any) -> Any:
    """The part that is tested; the others may have controls of the same names."""
    return page.locator("#panel-table")


def cell(page: Any, sheet: str, row: int, column: int) -> Any:
    """A cell of a sheet, counted from 0."""
    return page.locator(f".table-part .{sheet} .cell[data-row='{row}'][data-column='{column}']")


def texts(page: Any, sheet: str) -> list[list[str]]:
    """What a sheet shows."""
    return list(
        page.evaluate(
            """(sheet) => [...document.querySelectorAll(`.table-part .${sheet} .row:not(.heads)`)].map((row) =>
                [...row.querySelectorAll(".cell")].map((cell) => cell.value ?? cell.textContent))""",
            sheet,
        )
    )


def numbers(page: Any, sheet: str) -> np.ndarray:
    """The same as numbers: – is NaN."""
    powers = str.maketrans("−–⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-n-0123456789")
    rows = [
        [one.translate(powers).replace("×10", "e").replace("n", "nan") for one in row] for row in texts(page, sheet)
    ]
    return np.array(rows, float)


def paste(page: Any, text: str) -> bool:
    """Paste into what has the focus; whether the page took it."""
    return bool(
        page.evaluate(
            """(text) => {
                const data = new DataTransfer();
                data.setData("text/plain", text);
                const event = new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true });
                document.activeElement.dispatchEvent(event);
                return event.defaultPrevented;
            }""",
            text,
        )
    )


def focused(page: Any) -> tuple[str, int, int] | None:
    """Sheet, row and column of the cell that has the focus."""
    found = page.evaluate(
        """() => {
            const one = document.activeElement;
            const sheet = one.closest(".sheet")?.classList[1];
            return one.matches(".cell") ? [sheet, Number(one.dataset.row), Number(one.dataset.column)] : null;
        }"""
    )
    return None if found is None else (found[0], found[1], found[2])


def lit(page: Any, sheet: str) -> set[tuple[int, int]]:
    """The cells of x that lie in the lit box of a sheet, by where they are on the screen."""
    return lit_in(page, (sheet,))[sheet]


def lit_in(page: Any, sheets: Sequence[str]) -> dict[str, set[tuple[int, int]]]:
    """The same for several sheets, in one trip to the browser."""
    found = page.evaluate(
        """(sheets) => sheets.map((sheet) => {
            const area = document.querySelector(`.table-part .${sheet} .ring`).getBoundingClientRect();
            const tint = document.querySelector(`.table-part .${sheet} .lit`).getBoundingClientRect();
            if (JSON.stringify(area) !== JSON.stringify(tint)) throw new Error("ring and tint differ");
            const inside = ({ left, right, top, bottom }) =>
                left > area.left - 1 && right < area.right + 1 && top > area.top - 1 && bottom < area.bottom + 1;
            return [...document.querySelectorAll(`.table-part .${sheet} .cell`)]
                .filter((one) => inside(one.getBoundingClientRect()))
                .map((one) => [Number(one.dataset.row), Number(one.dataset.column)]);
        })""",
        list(sheets),
    )
    return {sheet: {(row, column) for row, column in cells} for sheet, cells in zip(sheets, found, strict=True)}


def write(rows: Sequence[Sequence[object]]) -> str:
    """Rows as the address holds them."""
    return ";".join(",".join(map(str, row)) for row in rows)


def explained(page: Any) -> str:
    return str(page.locator(".table-part .explained").inner_text())


def table_of(rows: int, columns: int) -> list[list[float]]:
    draw = random.Random(0)
    return [[round(draw.gauss(0, 3), 2) for _ in range(columns)] for _ in range(rows)]
