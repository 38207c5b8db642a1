"""docs/notes.md: every row of its table leads to what it says, by a command or by a link of the page."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from browser import Open, go_to, shown_part

PAGE = Path(__file__).resolve().parents[1] / "docs/notes.md"


@dataclass(frozen=True)
class Row:
    note: str
    statement: str
    where: str
    shown: tuple[str, ...]  # texts that must be on the screen


def rows(text: str) -> list[Row]:
    found = re.findall(r"^\| (00\d) \| (.*?) \| `(.*?)` \| (.*) \|$", text, re.MULTILINE)
    return [Row(note, what, where, tuple(re.findall(r'"(.*?)"', look))) for note, what, where, look in found]


ROWS = rows(PAGE.read_text("utf-8"))


def spaced(text: str) -> str:
    """With single spaces, as neither HTML nor a person counts them."""
    return " ".join(text.split())


def test_the_table_covers_all_five_notes_in_their_order() -> None:
    lines = re.findall(r"^\| 00\d \|.*$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(ROWS) == len(lines) >= 45
    assert sorted({row.note for row in ROWS}) == ["000", "001", "002", "003", "004"]
    assert [row.note for row in ROWS] == sorted(row.note for row in ROWS)
    for row in ROWS:
        assert row.where.startswith(("truenorm ", "#part=")), row.where
        assert row.shown, f"{row.statement}: says nothing to look for"


@pytest.mark.parametrize("command", sorted({row.where for row in ROWS if row.where.startswith("truenorm ")}))
def test_commands_print_what_the_notes_say(command: str) -> None:
    line = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(line, capture_output=True, encoding="utf-8", env={**os.environ, "COLUMNS": "160"})
    assert done.returncode == 0, done.stderr
    printed = spaced(done.stdout)
    for row in ROWS:
        if row.where == command:
            for text in row.shown:
                assert spaced(text) in printed, f"{row.statement}: no {text!r}"


@pytest.mark.slow
def test_links_show_what_the_notes_say(open_page: Open) -> None:
    page = open_page()
    for row in ROWS:
        if not row.where.startswith("#"):
            continue
        go_to(page, row.where)
        part = re.findall(r"#part=(\w+)", row.where)[0]
        assert shown_part(page) == part, row.where
        assert page.locator("#notice").is_hidden(), f"{row.where}: {page.locator('#notice').inner_text()}"
        written = page.locator(f"#panel-{part}").evaluate(
            "(panel) => [panel.innerText, ...[...panel.querySelectorAll('input')].map((one) => one.value)].join(' ')"
        )
        for text in row.shown:
            assert spaced(text) in spaced(written), f"{row.statement}: no {text!r} at {row.where}"


def test_a_row_that_promises_too_much_would_be_noticed() -> None:
    (row,) = rows('| 000 | A claim | `#part=table` | "something", or "other words" |')
    assert row == Row("000", "A claim", "#part=table", ("something", "other words"))
