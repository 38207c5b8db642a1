"""Reading and using the page's padded sentences in a browser: what their tests share."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from truenorm.explanation import examples

HERE = "#part=padding"
METHODS = dict(zip(("all", "valid", "layer"), examples.methods(), strict=True))
EMBEDDINGS = (
    np.array([[0.2, 0.45, 0.71], [0.4, 0.3, 0.8]]),
    np.array([[0.3, 0.5, 0.34], [0.1, 0.0, 0.25], [0.33, 0.56, 0.9], [0.11, 0.4, 0.54]]),
)
LONG = "Donaudampfschifffahrtsgesellschaftskapitänskajüte"


def card(page: Any, name: str) -> Any:
    return page.locator(f"[data-method={name}]")


def shown(page: Any, name: str, what: str) -> Any:
    """A method's moved, y, alone, mean or deviation, in full."""
    return json.loads(card(page, name).get_attribute(f"data-{what}"))


def padding(page: Any) -> Any:
    return page.get_by_role("slider", name="Padding", exact=True)


def set_padding(page: Any, rows: int) -> None:
    padding(page).fill(str(rows // 2))
    wanted = f"to {rows // 2 + 3} words: {rows} rows"
    page.wait_for_function("(text) => document.querySelector('.bar output').textContent === text", arg=wanted)


def cell(page: Any, word: str, what: str, number: int) -> Any:
    return page.get_by_label(f"{word}, {what}, number {number}", exact=True)


def said(page: Any) -> str:
    return str(page.locator("#panel-padding .said").inner_text())
