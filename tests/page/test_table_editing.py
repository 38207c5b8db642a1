"""The page's table in a real browser: editing by mouse, keyboard and paste, and what cannot be read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from browser import Open, Processor, flushed, go_to, settle, violations
from numpy.testing import assert_allclose
from table_page import (
    EXAMPLE,
    NORMS,
    cell,
    explained,
    focused,
    lit,
    numbers,
    part,
    paste,
    table_of,
    texts,
    write,
)

import truenorm as tn

pytestmark = pytest.mark.slow


def test_an_edit_moves_its_column_alone_and_is_kept_in_the_address(open_page: Open) -> None:
    page = open_page("#part=table")
    before = numbers(page, "y")
    cell(page, "x", 2, 1).fill("12.5")
    settle(page)
    x = np.array(EXAMPLE, float)
    x[2, 1] = 12.5
    after = numbers(page, "y")
    assert_allclose(after, tn.forward(x, tn.batch()).y, rtol=1e-3)
    assert (after[:, [0, 2]] == before[:, [0, 2]]).all()
    assert (after[:, 1] != before[:, 1]).all()
    fragment = flushed(page)
    assert fragment == "#part=table&x=7,5,4;2,3,4;1,12.5,3;7,5,6;3,3,4&table.cell=x,2,1"
    again = open_page(fragment)
    for sheet in ("x", "mean", "var", "xhat", "y"):
        assert texts(again, sheet) == texts(page, sheet)
        assert lit(again, sheet) == lit(page, sheet)
    assert explained(again) == explained(page)


def test_a_block_is_pasted_and_the_table_grows(open_page: Open) -> None:
    page = open_page("#part=table")
    cell(page, "x", 4, 2).focus()
    assert paste(page, "10\t11,5\n12\t13\n")
    settle(page)
    rows = texts(page, "x")
    assert rows[4:] == [["3", "3", "10", "11,5"], ["", "", "12", "13"]]
    assert [row[3] for row in rows[:4]] == [""] * 4
    assert "6 cells without a number, left out of every mean." in page.locator(".problems").inner_text()
    assert_allclose(numbers(page, "mean")[0], [4, 3.6, (4 + 4 + 3 + 6 + 10 + 12) / 6, 12.25])
    page.keyboard.press("Control+z")
    settle(page)
    assert texts(page, "x") == [[str(one) for one in row] for row in EXAMPLE]
    page.keyboard.press("Control+y")
    settle(page)
    assert texts(page, "x") == rows
    assert not paste(page, "4.5"), "one number is pasted as everywhere"
    assert not paste(page, "4,5")


def test_too_large_a_block_is_refused_where_it_is_and_nothing_changes(open_page: Open) -> None:
    page = open_page("#part=table")
    cell(page, "x", 0, 0).focus()
    assert paste(page, "\n".join(["1\t2"] * 5001))
    settle(page)
    assert page.locator("#refused").inner_text() == (
        "A table has at most 1000 rows, 128 columns and 4096 cells, got 5001 × 2. The table was left as it is."
    )
    assert len(texts(page, "x")) == 5
    assert part(page).get_by_role("button", name="Undo").is_disabled()


def test_the_whole_table_as_text(open_page: Open) -> None:
    page = open_page("#part=table")
    part(page).get_by_text("The whole table as text").click()
    area = part(page).get_by_label("The whole table as text")
    page.wait_for_function(
        "() => document.querySelector('details[open] textarea')?.value"
    )  # it is filled when it opens
    assert area.input_value() == "\n".join("\t".join(map(str, row)) for row in EXAMPLE)
    area.fill("1, 2\n3, 4\n5, 9")
    part(page).get_by_role("button", name="Use this table").click()
    settle(page)
    assert texts(page, "x") == [["1", "2"], ["3", "4"], ["5", "9"]]
    assert texts(page, "mean") == [["3", "5"]]
    part(page).get_by_role("button", name="Undo").click()
    settle(page)
    assert len(texts(page, "x")) == 5


def test_keyboard_alone_walks_edits_and_leaves(open_page: Open) -> None:
    page = open_page("#part=table")
    page.locator("#tab-table").focus()
    for _ in range(12):
        page.keyboard.press("Tab")
        if focused(page):
            break
    assert focused(page) == ("x", 0, 0)
    seen = []
    moves = ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft", "Enter", "Shift+Enter")
    for key in (*moves, "Tab", "Tab", "Tab", "Shift+Tab", "Control+End"):
        page.keyboard.press(key)
        seen.append((focused(page) or ("",))[1:])
    assert seen == [(0, 1), (1, 1), (2, 1), (2, 0), (3, 0), (2, 0), (2, 1), (2, 2), (3, 0), (2, 2), (4, 2)]
    page.keyboard.type("125")  # all was selected: typing replaces
    page.keyboard.press("ArrowLeft")  # the caret moves first
    page.keyboard.press("Backspace")
    settle(page)
    assert focused(page) == ("x", 4, 2)
    assert texts(page, "x")[4][2] == "15"
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    assert (focused(page) or ("",))[0] != "x"
    cell(page, "x", 4, 2).focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "+ row", "behind the last cell, Tab leaves"
    for sheet in ("mean", "xhat", "y"):
        for _ in range(20):
            page.keyboard.press("Tab")
            if (focused(page) or ("",))[0] == sheet:
                break
        page.keyboard.press("Control+Home")
        page.keyboard.press("ArrowRight")
        assert focused(page) == (sheet, 0, 1)
        assert "column 2" in explained(page).lower()


def test_rows_and_columns_come_and_go_by_key_and_nothing_is_lost(open_page: Open) -> None:
    page = open_page("#weight=2,3,4&bias=5,6,7")
    start = texts(page, "x")
    cell(page, "x", 1, 1).focus()
    page.keyboard.press("Alt+c")
    settle(page)
    assert focused(page) == ("x", 1, 2)
    assert texts(page, "x")[0] == ["7", "5", "", "4"]
    assert texts(page, "parameters") == [["2", "3", "1", "4"], ["5", "6", "0", "7"]]
    page.keyboard.press("Alt+Shift+C")
    settle(page)
    page.keyboard.press("Alt+r")
    settle(page)
    assert focused(page) == ("x", 2, 2)
    assert texts(page, "x")[2] == ["", "", ""]
    page.keyboard.type("8")
    settle(page)
    assert texts(page, "x")[2] == ["", "", "8"]
    page.keyboard.press("Alt+Shift+R")
    settle(page)
    assert texts(page, "x") == start
    seen = []
    for _ in range(5):
        page.keyboard.press("Control+z")
        settle(page)
        seen.append([len(texts(page, "x")), len(texts(page, "x")[0]), texts(page, "x")[2][-1]])
    assert seen == [[6, 3, "8"], [6, 3, ""], [5, 3, "3"], [5, 4, "3"], [5, 3, "3"]]
    assert texts(page, "x") == start
    assert texts(page, "parameters") == [["2", "3", "4"], ["5", "6", "7"]]
    assert part(page).get_by_role("button", name="Undo").is_disabled()


def test_undo_comes_back_to_a_table_from_the_address(open_page: Open) -> None:
    page = open_page("#part=table")
    cell = page.get_by_label("x, row 1, column 1", exact=True)
    cell.fill("11")
    page.evaluate("location.hash = 'x=1,2;3,4'")
    page.wait_for_function("document.querySelector('.sheet.x .cell').textContent === '1'")
    cell.fill("99")
    cell.press("Control+z")
    assert page.locator(".sheet.x .cell").all_inner_texts() == ["1", "2", "3", "4"]


def test_escape_leaves_a_sheet(open_page: Open) -> None:
    page = open_page("#part=table")
    for sheet in ("x", "mean", "y", "parameters"):
        page.locator(f".sheet.{sheet} .cell").first.click()
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.matches('button, input, .cell')"), sheet
        assert page.evaluate(f"!document.activeElement.closest('.sheet.{sheet}')"), sheet


def test_a_button_that_has_nothing_left_to_do_keeps_the_focus(open_page: Open) -> None:
    page = open_page("#norm=group&weight=2,2,2")
    for name in ("γ = 1, β = 0", "Undo", "Redo", "Samples: fewer"):
        button = part(page).get_by_role("button", name=name)
        button.press("Enter")
        assert button.is_disabled(), name
        before = page.evaluate("location.hash")
        button.press("Enter")
        assert button.evaluate("(button) => button === document.activeElement"), name
        assert page.evaluate("location.hash") == before, name
    for _ in range(5):
        part(page).get_by_role("button", name="− row").press("Enter")
    assert page.evaluate("document.activeElement.innerText") == "what was there before"


def test_what_was_said_is_not_said_again(open_page: Open) -> None:
    page = open_page("#x=oops,2;3,4&norm=group")
    page.evaluate(
        "window.said = 0; const count = new MutationObserver((all) => (said += all.length));"
        "document.querySelectorAll('#panel-table :is([role=status], output:not([aria-live=off]))').forEach((one) =>"
        " count.observe(one, { childList: true, characterData: true, subtree: true }))"
    )
    cell = page.get_by_label("x, row 2, column 1", exact=True)
    cell.fill("31")
    cell.fill("312")
    assert page.evaluate("said") == 0
    cell.fill("no")
    assert page.evaluate("said") > 0


def test_a_column_removed_while_chosen_and_lit(open_page: Open) -> None:
    page = open_page("#weight=2,3,4&table.cell=y,1,2")
    assert lit(page, "y") == {(row, 2) for row in range(5)}
    part(page).get_by_role("button", name="− column 3").click()
    settle(page)
    assert texts(page, "x")[0] == ["7", "5"]
    assert texts(page, "parameters")[0] == ["2", "3"]
    assert lit(page, "y") == {(row, 1) for row in range(5)}
    assert "Row 2, column 2" in explained(page)
    cell(page, "x", 4, 0).focus()
    page.keyboard.press("Alt+Shift+C")
    settle(page)
    assert focused(page) == ("x", 4, 0)
    assert texts(page, "x")[0] == ["5"]
    assert texts(page, "parameters")[0] == ["3"]
    page.keyboard.press("Control+z")
    page.keyboard.press("Control+z")
    settle(page)
    assert texts(page, "parameters")[0] == ["2", "3", "4"]


def test_an_empty_table_has_a_friendly_way_back(open_page: Open) -> None:
    page = open_page("#x=1,2")
    cell(page, "x", 0, 0).focus()
    page.keyboard.press("Alt+Shift+R")
    settle(page)
    assert part(page).get_by_text("The table is empty").is_visible()
    assert page.evaluate("document.activeElement.textContent") == "what was there before"
    assert violations(page) == ""
    page.keyboard.press("Enter")
    settle(page)
    assert texts(page, "x") == [["1", "2"]]
    assert focused(page) == ("x", 0, 0)

    for fragment in ("#x=;", "#x="):
        go_to(page, fragment)
        assert part(page).get_by_text("The table is empty").is_visible()
        part(page).get_by_role("button", name="the example", exact=True).focus()
        assert paste(page, "3\t4\n5\t8")
        settle(page)
        assert texts(page, "mean") == [["4", "6"]]
    page = open_page("#x=")
    assert part(page).get_by_text("The table is empty").is_visible()
    part(page).get_by_role("button", name="one cell").click()
    settle(page)
    assert focused(page) == ("x", 0, 0)
    page.keyboard.type("3")
    settle(page)
    assert texts(page, "y") == [["0"]]
    go_to(page, "#x=")
    part(page).get_by_role("button", name="the example", exact=True).click()
    settle(page)
    assert len(texts(page, "x")) == 5


def test_what_is_no_number_is_marked_left_out_and_kept(open_page: Open) -> None:
    page = open_page("#part=table")
    cell(page, "x", 1, 0).fill("about 2")
    cell(page, "parameters", 0, 2).fill("heavy")
    settle(page)
    bad = cell(page, "x", 1, 0)
    assert bad.get_attribute("aria-invalid") == "true"
    said = page.locator(".problems").inner_text()
    assert "Row 2, column 1: “about 2” is not a number, so it is left out." in said
    assert "γ (weight) of column 3 is “heavy”, not a number: 1 is used." in said
    valid = np.ones((5, 3), bool)
    valid[1, 0] = False
    want = tn.forward(np.array(EXAMPLE, float), tn.batch(), valid=valid).y
    want[1, 0] = np.nan
    assert_allclose(numbers(page, "y"), want, rtol=1e-3)
    bad.focus()
    assert "is not a number, so it is left out" in explained(page)
    again = open_page(flushed(page))
    assert texts(again, "x")[1][0] == "about 2"
    assert texts(again, "parameters")[0][2] == "heavy"
    assert violations(again) == ""
    cell(again, "x", 1, 0).fill("2")
    settle(again)
    assert cell(again, "x", 1, 0).get_attribute("aria-invalid") == "false"


@pytest.mark.slow
@pytest.mark.parametrize("name", NORMS)
def test_editing_stays_instant_at_64_by_64(open_page: Open, name: str) -> None:
    """Less than 100 ms from a letter to the painted page: of the processor, as other tests may keep it busy."""
    page = open_page("#part=table")
    page.set_default_timeout(60_000)
    page.evaluate("(hash) => (location.hash = hash)", f"norm={name}&x={write(table_of(64, 64))}&samples=4&groups=4")
    cell(page, "y", 63, 63).wait_for(state="attached")
    used = Processor(page).seconds
    seconds, waits = [], []
    for turn in range(12):
        cell(page, "x", turn * 5, turn).focus()
        settle(page)
        before = used()
        waits.append(
            page.evaluate(
                """async (text) => {
                    const start = performance.now();
                    document.activeElement.textContent = text;
                    document.activeElement.dispatchEvent(new InputEvent("input", { bubbles: true }));
                    await new Promise((done) => requestAnimationFrame(() => {
                        const channel = new MessageChannel();
                        channel.port1.onmessage = done;
                        channel.port2.postMessage(null);
                    }));
                    return performance.now() - start;
                }""",
                str(turn + 0.5),
            )
        )
        seconds.append(used() - before)
    print(f"{name}: {np.median(seconds) * 1000:.0f} ms of the processor, {np.median(waits):.0f} ms on the clock")
    assert min(seconds) < 0.1
    assert np.median(seconds) < 0.3  # about 0.05 on a quiet machine, where no other work takes the caches
    x = np.array(texts(page, "x"), float)
    assert x.shape == (64, 64)
    assert [x[turn * 5, turn] for turn in range(12)] == [turn + 0.5 for turn in range(12)]
    arguments: dict[str, Any] = {"offsets": [0, 16, 32, 48, 64]} if name in ("instance", "group") else {}
    norm = tn.group(4) if name == "group" else getattr(tn, name)()
    assert_allclose(numbers(page, "y"), tn.forward(x, norm, **arguments).y, rtol=1e-3, atol=1e-4)


def test_a_click_and_typing_replaces_a_cell_and_a_second_click_does_not(open_page: Open) -> None:
    page = open_page("#part=table")
    cell = part(page).locator("[data-row='0'][data-column='0'][contenteditable]").first
    cell.click()
    page.keyboard.type("10")
    assert texts(page, "x")[0][0] == "10"
    cell.click()
    page.keyboard.press("End")
    page.keyboard.type("5")
    assert texts(page, "x")[0][0] == "105"


def test_a_number_that_could_mean_two_is_said_and_left_out(open_page: Open) -> None:
    page = open_page("#x=1%2C234;0%2C125;3")
    assert "could mean two numbers, so it is left out" in part(page).inner_text()
