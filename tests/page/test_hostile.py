"""The page in a real browser with what nobody should give it: halves of characters, megabytes, links that are wrong.

It says what it refused, stays usable, and is never busy for more than a second. An error in the console fails a test:
see browser.py. Parsers and state are also fuzzed under node, without a browser: fuzz.mjs.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from browser import Open, Processor, flushed, go_to, node, settle
from table_page import cell, part, paste, texts

pytestmark = pytest.mark.slow

SIZE = "A table has at most 1000 rows, 128 columns and 4096 cells, got {}. The table was left as it is."

PASTES = {
    "10,000 columns": ("\t".join(["1"] * 10_000), SIZE.format("1 × 10000")),
    "100,000 rows": ("1\t2\n" * 100_000, SIZE.format("100000 × 2")),
    "rows and columns": ("1\t2\n" * 20_000 + "\t".join(["1"] * 10_000), SIZE.format("20001 × 10000")),
    "a megabyte": ("9" * 1_000_000, "A cell has at most 200 characters, got 1000000. The table was left as it is."),
    "more": (
        "1\t" * 600_000,
        "A pasted text has at most 1000000 characters, got 1200000. The table was left as it is.",
    ),
    "wide letters": (
        "\n".join(["\t".join(["€" * 20] * 64)] * 64),
        "A table in the address has at most 250000 characters, got 741376. The table was left as it is.",
    ),
}


def test_what_is_too_large_to_paste_is_refused_in_words(open_page: Open) -> None:
    page = open_page("#part=table")
    used = Processor(page).seconds
    for name, (text, said) in PASTES.items():
        cell(page, "x", 0, 0).focus()
        before = used()
        assert paste(page, text), name
        settle(page)
        assert used() - before < 1, name
        assert page.locator("#refused").inner_text() == said, name
        assert [len(texts(page, "x")), len(texts(page, "x")[0])] == [5, 3], name
    for text in ("1" + " " * 200_000 + "2", "\n" * 300_000 + "1\t2"):
        before = used()
        assert paste(page, text)
        settle(page)
        assert used() - before < 1
        assert texts(page, "x")[0] == ["1", "2", "4"]
    part(page).get_by_text("The whole table as text").click()
    area = part(page).get_by_label("The whole table as text")
    area.evaluate("(area) => { area.value = '1\\n'.repeat(1001); }")
    part(page).get_by_role("button", name="Use this table").click()
    assert page.locator("#refused").inner_text() == SIZE.format("1001 × 1")


FIELDS = {
    "table": "x, row 1, column 1",
    "backward": "dy, row 1, column 1",
    "padding": "Hi, embedding, number 1",
}


def content(field: Any) -> str:
    return str(field.evaluate("(field) => field.value ?? field.textContent"))


def test_half_a_character_stops_nothing(open_page: Open) -> None:
    page = open_page("#part=table")
    for name, label in FIELDS.items():
        go_to(page, f"#part={name}")
        field = page.get_by_label(label, exact=True)
        field.evaluate(
            """(field) => {
                field["value" in field ? "value" : "textContent"] = "7\\ud800";
                field.dispatchEvent(new InputEvent("input", { bubbles: true }));
            }"""
        )
        assert re.search(r"=[^&]*7%EF%BF%BD,", flushed(page)), name
        assert field.get_attribute("aria-invalid") == "true", name
        field.fill("8")
        assert re.search(r"=[^&]*\b8,", flushed(page)), name


@pytest.mark.slow
def test_more_than_a_cell_can_hold_is_refused_before_it_is_in(open_page: Open) -> None:
    page = open_page("#part=table")
    used, said = Processor(page).seconds, page.locator("#refused")
    for name, label in FIELDS.items():
        go_to(page, f"#part={name}")
        field = page.get_by_label(label, exact=True)
        before = content(field)
        for text in ("9" * 1_000_000, "x" * 201):
            field.focus()
            start = used()
            page.keyboard.press("End")
            page.keyboard.insert_text(text)
            settle(page)
            assert used() - start < 1, name
            assert said.inner_text() == (
                f"There is room for 200 characters here, this would be {len(before + text)}. Nothing was changed."
            )
            assert content(field) == before, name
            page.keyboard.press("Shift")
            assert said.is_hidden()
        page.keyboard.insert_text("5")
        assert content(field) == before + "5"


def test_a_sentence_of_a_megabyte_or_of_one_long_word(open_page: Open) -> None:
    page = open_page("#part=padding")
    first = page.get_by_label("The first sentence")
    first.focus()
    page.keyboard.insert_text("word " * 200_000)
    assert page.locator("#refused").inner_text().startswith("There is room for 2412 characters here")
    first.fill("a" * 300)
    said = "A word has at most 200 characters, got 300. Until it is shorter, “Hi Nitish” stays."
    assert page.get_by_text(said, exact=True).is_visible()
    assert first.get_attribute("aria-invalid") == "true"
    assert flushed(page) == "#part=padding"
    first.fill("a" * 200)
    assert first.get_attribute("aria-invalid") == "false"
    page.reload()
    assert first.input_value() == "a" * 200


IGNORED = "Ignored in the address"
LINKS = {
    "#x=" + ",".join(["1"] * 10_000): f"{IGNORED}: x. A table has at most 1000 rows, 128 columns and 4096",
    "#x=" + ";".join(["1"] * 10_000): f"{IGNORED}: x. A table has at most 1000 rows, 128 columns and 4096",
    "#x=" + "1" * 300_000: f"{IGNORED}: x. A table in the address has at most 250000 characters",
    "#weight=" + ",".join(["1"] * 129): f"{IGNORED}: weight. A table has at most",
    "#__proto__=1&constructor=2&norm=__proto__": f"{IGNORED}, as it cannot be read: norm=__proto__, __proto__",
    "#x=1,2;3&part=backward&backward.dy=%ED%A0%80": f"{IGNORED}, as it cannot be read: x=1,2;3, backward.dy",
    "#part=padding&padding.first=a,b": f"{IGNORED}, as it cannot be read: padding.first=a,b.",
    "#" + "a&" * 50_000: f"{IGNORED}, as it cannot be read: a.",
    "#x=%00,%E2%80%AE1,%EF%BC%91%EF%BC%92;1e999,-0,0x10": "",
    "#version=2&state=" + "[" * 5_000: f"{IGNORED}, as it cannot be read: version=2, state=[[",
}


def test_links_that_are_wrong_are_refused_in_words(open_page: Open) -> None:
    page = open_page("#part=table")
    used = Processor(page).seconds
    for link, said in LINKS.items():
        before = used()
        page.evaluate("(link) => { location.hash = link; }", link)
        page.wait_for_function("(link) => location.hash.length >= link.length", arg=link)
        settle(page)
        assert used() - before < 1, link[:80]
        assert page.locator("#notice").text_content().startswith(said), link[:80]
        page.locator("#tab-table").click()
        cell(page, "x", 0, 0).fill("12")
        settle(page)
        assert texts(page, "x")[0][0] == "12", link[:80]


UNFIT = {
    "#part=table&weight=1": "weight: 1 given for 3 columns; the others are 1.",
    "#part=table&bias=9,9,9,9,9": "bias: 5 given for 3 columns; the last are not used.",
    "#part=table&norm=instance&samples=9": "samples: 9 given, but there are 5 rows; 5 is used.",
    "#part=table&norm=group&groups=2": "groups: 2 cannot share 3 columns equally, 1 can.",
    "#part=table&table.cell=x,99,99": (
        "table.cell: there is no row 100, column 100 in a table of 5 × 3; the nearest cell is shown."
    ),
    "#part=backward&backward.cell=99,2": (
        "backward.cell: there is no row 99, column 2 in a table of 5 × 3; the nearest cell is shown."
    ),
    "#part=backward&backward.dy=1": (
        "backward.dy is 1 × 1, but the table is 5 × 3: what is missing is 0, what is too much is not used."
    ),
    "#part=padding&padding.watched=20": "padding.watched: 20 given, but there are 5 words behind the first; 5 is used.",
    "#part=why&part=table": "part stands in the address more than once: the last one counts.",
    "#part=table&x=1,2&weight=1,2&bias=0,0&table.cell=y,0,1&backward.dy=1,2&backward.cell=1,2": "",
}


def test_links_that_do_not_fit_are_repaired_in_words(open_page: Open) -> None:
    page = open_page("#part=table")
    for link, said in UNFIT.items():
        go_to(page, link)
        assert page.locator("#notice").text_content() == said, link


def test_a_link_of_20_kilobytes_is_quick_or_refused(open_page: Open) -> None:
    page = open_page(next(iter(LINKS)))
    assert page.locator("#notice").inner_text() == (
        "Ignored in the address: x. A table has at most 1000 rows, 128 columns and 4096 cells, got 1 × 10000."
    )
    assert len(texts(page, "x")) == 5


@pytest.mark.slow
@pytest.mark.parametrize("place", ["table", "backward"])
@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (32, 128), (1, 128), (1000, 4), (1000, 1)])
def test_the_largest_tables_are_drawn_in_time(open_page: Open, place: str, rows: int, columns: int) -> None:
    page = open_page("#part=table")
    used = Processor(page).seconds
    table = ";".join(",".join(str((7 * i + 3 * j) % 10) for j in range(columns)) for i in range(rows))
    before = used()
    page.evaluate("(link) => { location.hash = link; }", f"part={place}&x={table}")
    settle(page)
    settle(page)
    assert page.locator("#notice").is_hidden()
    print(f"{place} {rows} x {columns}: {used() - before:.2f} s of the processor")
    assert used() - before < 2.5  # about 0.7 on a quiet machine, where no other work takes the caches


def test_what_cannot_be_seen_does_not_turn_the_words_behind_it(open_page: Open) -> None:
    page = open_page("#x=%E2%80%AEabc,1e999;%00,2")
    said = page.locator(".problems").inner_text()
    assert "Row 1, column 1: “\ufffdabc” is not a number, so it is left out." in said
    assert "Row 1, column 2: “1e999” is more than a computer can hold, so it is left out." in said
    assert "Row 2, column 1: “\ufffd” is not a number, so it is left out." in said
    assert cell(page, "x", 0, 0).inner_text() == "\u202eabc"


def test_a_failure_in_one_part_is_said_and_stops_no_other(browser: Any, address: str) -> None:
    with browser.new_page() as page:
        failures: list[str] = []
        page.on("pageerror", lambda error: failures.append(str(error)))
        page.goto(f"{address}#part=table")
        page.evaluate(
            "() => { document.querySelector('.axes').replaceChildren = () => { throw new Error('broken'); }; }"
        )
        page.locator("#panel-table").get_by_label("Layer", exact=True).check()
        settle(page)
        assert page.locator("#refused").inner_text() == "This part of the page failed: broken"
        assert failures == ["broken"]
        page.locator("#theme").select_option("dark")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.slow
def test_the_fuzzer_finds_nothing_in_a_minute() -> None:
    script = Path(__file__).with_name("fuzz.mjs")
    done = subprocess.run([node(), str(script), "20", "60"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(found)
    assert found["cases"] > 500
    assert found["slowest"] < 1
