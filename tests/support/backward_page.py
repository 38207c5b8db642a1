"""Reading and using the page's backward pass in a browser: what its tests share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.testing import assert_allclose


def number(text: str) -> float:
    """A number as the page shows it."""
    plain = text.translate(str.maketrans("−⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "--0123456789")).replace("×10", "e")
    return float(plain.replace("∞", "inf").replace("≈ ", ""))


def values(page: Any) -> list[list[str]]:
    """The texts of the step's table."""
    found: list[list[str]] = page.locator(".backward-details table").evaluate(
        "table => [...table.tBodies[0].rows].map(row => [...row.querySelectorAll('td')].map(cell => cell.textContent))"
    )
    return found


SNAPSHOT = """() => {
    const text = (selector) => document.querySelector(selector).innerText;
    const edges = (state) => [...document.querySelectorAll(`[data-edge][data-state=${state}]`)]
        .map((one) => one.dataset.edge).sort().join(" ");
    const rows = [...document.querySelector(".backward-details table").tBodies[0].rows];
    return {
        progress: text(".backward-progress"), why: text(".backward-why"),
        lit: edges("lit"), done: edges("done"), todo: edges("todo"),
        values: rows.map((row) => [...row.querySelectorAll("td")].map((cell) => cell.textContent)),
    };
}"""


def snapshot(page: Any) -> dict[str, Any]:
    """What a step shows: progress, why, values, and the edges that are lit, done and todo. One trip to the browser."""
    found: dict[str, Any] = page.evaluate(SNAPSHOT)
    return found


def progress(page: Any) -> str:
    return str(page.locator(".backward-progress").inner_text())


def press(page: Any, name: str) -> None:
    page.locator(".backward-buttons").get_by_role("button", name=name).click()


def option(page: Any, name: str) -> Any:
    return page.locator("#panel-backward").get_by_label(name)


def entry(page: Any, row: int, column: int) -> Any:
    return page.get_by_label(f"dy, row {row}, column {column}", exact=True)


def copied(page: Any, library: str) -> str:
    page.evaluate("navigator.clipboard.writeText = async (text) => { globalThis.copied = text; }")
    page.locator("#panel-backward .copy").get_by_role("button", name=library).click()
    return str(page.evaluate("globalThis.copied"))


def agrees(shown: list[list[str]], want: Any) -> None:
    """To the four digits that are shown."""
    flat = [number(text) for row in shown for text in row if text != "–"]
    want = np.asarray(want, float)
    assert_allclose(flat, want[~np.isnan(want)], rtol=6e-4, atol=1e-12)
