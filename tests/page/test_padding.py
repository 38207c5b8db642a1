"""The page's padded sentences in a real browser: its numbers are Python's, whatever the padding."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import DESKTOP, PHONE, Open, go_to, stop_clock, violations
from numpy.testing import assert_allclose
from padding_page import HERE, LONG, METHODS, card, padding, said, set_padding, shown

import truenorm as tn
from truenorm.explanation import examples


def test_the_numbers_are_those_of_python(open_page: Open) -> None:
    page = open_page(HERE)
    for rows in (4, 10, 40, 100, 2):
        set_padding(page, rows)
        check_numbers(page, rows)


def check_numbers(page: Any, rows: int) -> None:
    for name, method in METHODS.items():
        assert_allclose(shown(page, name, "moved"), method.change(rows), rtol=1e-9, atol=1e-12)
        assert_allclose(shown(page, name, "y"), method.normalize(rows)[examples.HOW], rtol=1e-9)
    for name, lengths in (("all", None), ("valid", examples.LENGTHS)):
        moments = tn.measure(examples.padded_sentences(rows), tn.batch(), lengths=lengths)
        assert_allclose(shown(page, name, "mean"), moments.mean, rtol=1e-9)
        assert_allclose(shown(page, name, "deviation"), np.sqrt(moments.m2 / moments.count), rtol=1e-9)


def test_every_word_has_the_numbers_of_python(open_page: Open) -> None:
    page = open_page(HERE)
    places = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3)]
    for watched, place in enumerate(places):
        page.get_by_label("Watched word", exact=True).select_option(str(watched))
        word = page.get_by_label("Watched word", exact=True).locator("option:checked").inner_text()
        page.wait_for_function(
            "(word) => document.querySelector('#panel-padding .said').innerText.includes(word)", arg=word
        )
        assert page.locator(".stack tr.watched th").inner_text() == f"▸ {word}"
        for name, method in METHODS.items():
            assert_allclose(shown(page, name, "y"), method.normalize(2)[place], rtol=1e-9)


def test_only_counted_padding_moves_the_word(open_page: Open) -> None:
    page = open_page(HERE)
    assert "yet batch norm moved “How” by 0.6707, the largest change of its three numbers." in said(page)
    still = {name: (shown(page, name, "y"), shown(page, name, "mean")) for name in ("layer", "valid")}
    before = 0.0
    for rows in (2, 20, 60, 100):
        set_padding(page, rows)
        for name, numbers in still.items():  # to the last bit
            assert (shown(page, name, "y"), shown(page, name, "mean")) == numbers
            assert card(page, name).get_attribute("data-moved") == "0"
        assert shown(page, "all", "moved") > before
        before = shown(page, "all", "moved")
    padding(page).fill("0")
    page.wait_for_function("document.querySelector('#panel-padding .said').innerText.startsWith('No padding yet')")
    assert shown(page, "all", "y") == shown(page, "valid", "y") == still["valid"][0]


def test_what_the_slider_comes_to_is_said_once_it_rests(open_page: Open) -> None:
    page = open_page("#part=padding")
    page.evaluate(
        "window.heard = []; new MutationObserver(() => live.textContent && heard.push(live.textContent))"
        ".observe(document.getElementById('live'), { childList: true })"
    )
    padding = page.get_by_role("slider", name="Padding", exact=True)
    padding.evaluate(  # one right behind the other, however slow the machine is
        "slider => { for (let i = 0; i < 4; ++i) {"
        " slider.stepUp(); slider.dispatchEvent(new Event('input', { bubbles: true })); } }"
    )
    assert page.locator("#panel-padding .said[role=status]").count() == 0
    page.wait_for_function("() => heard.length > 0")
    assert page.evaluate("heard") == [said(page)]


def test_padding_is_dragged_by_mouse_and_keyboard(open_page: Open) -> None:
    page = open_page(HERE)
    box = padding(page).bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 50, middle)
    page.mouse.down()
    seen = []
    for part in (0.25, 0.5, 0.75, 1.0):
        page.mouse.move(box["x"] + part * box["width"], middle)
        seen.append(shown(page, "all", "moved"))
    page.mouse.up()
    assert seen == sorted(set(seen))
    assert_allclose(seen[-1], METHODS["all"].change(100), rtol=1e-9)

    padding(page).focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.querySelector('.bar output').textContent === 'to 5 words: 4 rows'")
    assert padding(page).get_attribute("aria-valuetext") == "to 5 words: 4 rows"
    assert_allclose(shown(page, "all", "moved"), METHODS["all"].change(4), rtol=1e-9)
    assert page.locator(".stack tr.pad:not(.statistic)").count() == 4
    assert "6 rows of words and 4 of padding: 40 %" in page.locator(".rows").inner_text()


def test_the_curve_is_the_drift_and_moves_the_padding(open_page: Open) -> None:
    page = open_page(HERE)
    scrub = page.get_by_role("slider", name="rows of padding")
    assert scrub.get_attribute("aria-valuetext") == "rows of padding 2"
    scrub.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("document.querySelector('.bar output').textContent === 'to 7 words: 8 rows'")
    counted, layer, valid = page.locator(".drift .legend b").all_inner_texts()
    assert (counted, layer, valid) == (f"{METHODS['all'].change(8):.4g}", "0", "0")
    set_padding(page, 100)
    assert page.locator(".drift .legend b").first.inner_text() == f"{METHODS['all'].change(100):.4g}"


def moved_texts(page: Any) -> set[str]:
    """How far the word moved, wherever the page says it."""
    places = (".said .number", ".bar .number", "[data-method=all] .number", ".drift .legend li:first-child b")
    return {page.locator(place).inner_text() for place in places}


def test_a_number_has_the_same_digits_everywhere(open_page: Open) -> None:
    page = open_page(f"{HERE}&padding.length=53")
    check_digits(page, 100)
    for rows in (2, 4, 6, 44):
        go_to(page, f"{HERE}&padding.length={rows // 2 + 3}")
        check_digits(page, rows)


def check_digits(page: Any, rows: int) -> None:
    text = f"{METHODS['all'].change(rows):.4g}"
    assert moved_texts(page) == {text}
    row = card(page, "all").locator("tr", has_text="moved").locator("td").all_inner_texts()
    assert text in [one.strip("+−") for one in row]
    of_stack = page.locator(".stack .statistic.pad").first.locator("td").all_inner_texts()
    assert card(page, "all").locator("tr", has_text="mean").locator("td").all_inner_texts() == of_stack


def test_the_texts_are_true_without_padding(open_page: Open) -> None:
    page = open_page(HERE)
    text = page.locator("#panel-padding").inner_text
    assert "Filled up, they make a rectangle" in text()
    assert "4. So the mean shrinks, and every word moves" in text()
    assert "the slider plays a longer one" not in text()
    padding(page).fill("0")
    page.wait_for_function("document.querySelector('.bar output').textContent === 'none'")
    for false in ("rectangle\n", "the mean shrinks", "are counted when", "the slider plays a longer one"):
        assert false not in text()
    assert page.locator(".tokens caption").inner_text() == "No padding yet: move the slider"
    assert "6 rows of words and no padding, so “all rows” are the words." in text()
    assert "No padding yet, so both means are the same." in text()
    set_padding(page, 4)
    assert "the slider plays a longer one, so both get padding" in text()
    page.get_by_label("The first sentence").fill("Hi Nitish my friend")
    padding(page).fill("1")
    page.wait_for_function("document.querySelector('.bar output').textContent === 'none'")
    assert page.locator(".tokens caption").inner_text() == "Equally long: no padding is needed"


def test_given_rows_are_called_made_up_and_computed_ones_mixtures(open_page: Open) -> None:
    page = open_page(HERE)
    attention = page.locator(".attention")
    assert "made up for a lecture" in attention.inner_text()
    assert "softmax" not in attention.inner_text()
    page.get_by_label("computed by self-attention").check()
    assert "a mixture of all words" in attention.inner_text()
    assert "made up" not in attention.inner_text()


def test_what_padding_costs_is_what_the_lab_found(open_page: Open) -> None:
    """The last table of docs/lab.md on padding: trained at 44, statistics re-estimated at 44, 22 and 11."""
    report = (Path(__file__).parents[2] / "docs" / "lab.md").read_text("utf-8")
    rows = report.split("re-estimated at 44", 1)[1].split("<!-- /padding", 1)[0]
    shares = [re.findall(r"([\d.]+%) ±", line) for line in rows.splitlines()]
    valid, over_all = (row for row in shares if row)
    text = open_page(HERE).locator("#panel-padding").inner_text()
    assert f"{over_all[0]} of new names were right before and {over_all[2]} after" in text
    assert valid[0] == valid[2]
    assert f"{valid[0]} both times" in text


def test_the_result_stays_in_sight_with_the_slider(open_page: Open) -> None:
    page = open_page(HERE, viewport=PHONE)
    page.locator(".drift").scroll_into_view_if_needed()
    box = page.locator(".bar .number").bounding_box()
    assert 0 <= box["y"] < 100
    assert box["x"] + box["width"] <= PHONE["width"]


@pytest.mark.parametrize("library", ["NumPy", "PyTorch", "truenorm"])
def test_copied_code_gives_the_numbers_that_are_shown(open_page: Open, library: str) -> None:
    if library == "PyTorch":
        pytest.importorskip("torch")
    page = open_page(HERE + "&padding.length=6")
    page.evaluate("navigator.clipboard.writeText = async (text) => { globalThis.copied = text; }")
    for name in METHODS:
        card(page, name).get_by_role("button", name=library).click()
        code = page.evaluate("globalThis.copied")
        names: dict[str, Any] = {}
        exec(code, names)
        assert np.shape(names["x"]) == (12, 3)
        assert_allclose(np.asarray(names["y"])[6], shown(page, name, "y"), rtol=1e-9, err_msg=code)
        words: Any = METHODS[name].normalize(6)[[0, 0, 1, 1, 1, 1], [0, 1, 0, 1, 2, 3]]
        assert_allclose(np.asarray(names["y"])[[0, 1, 6, 7, 8, 9]], words, rtol=1e-9)
        assert name == "valid" or len(code.splitlines()) < 30  # nothing is left out: the short form


def test_a_copy_is_seen_and_its_code_can_be_shown(open_page: Open) -> None:
    page = open_page(HERE, permissions=["clipboard-read", "clipboard-write"])
    stop_clock(page)
    buttons = card(page, "all").locator(".copy")
    button, code = buttons.get_by_role("button", name="PyTorch", exact=True), buttons.locator("pre")
    width = button.bounding_box()["width"]
    assert code.is_hidden()
    button.click()
    page.wait_for_function("() => document.querySelector('.copied')?.innerText === 'copied ✓'")
    assert button.bounding_box()["width"] == width
    assert button.is_visible()  # by its name, which has not changed
    page.clock.run_for(1000)
    assert page.locator("#live").inner_text() == "Copied as PyTorch."
    assert page.locator(".copied").count() == 1
    page.clock.run_for(1000)
    assert page.locator(".copied").count() == 0
    assert button.inner_text() == "PyTorch"
    page.clock.resume()

    buttons.get_by_text("Show the code").click()
    page.wait_for_function("() => document.querySelector('details[open] pre')?.textContent !== ''")
    assert code.inner_text() == page.evaluate("navigator.clipboard.readText()")
    buttons.get_by_label("Code for").select_option("NumPy")
    assert code.inner_text().startswith("import numpy")
    for rows in (10, 4):  # it follows what it shows
        set_padding(page, rows)
        page.wait_for_function(
            "(parts) => document.querySelector('[open] pre').textContent.split('    [0, 0, 0],').length === parts",
            arg=rows + 1,
        )
    assert violations(page) == ""


def test_where_copying_is_forbidden_the_code_is_shown_and_selected(open_page: Open) -> None:
    page = open_page(HERE)
    page.evaluate("() => { navigator.clipboard.writeText = async () => { throw new Error('no'); }; }")
    card(page, "layer").get_by_role("button", name="truenorm").click()
    card(page, "layer").locator("pre").wait_for()
    selected = page.evaluate("getSelection().toString()")
    assert selected.startswith("import")
    assert selected.strip() == card(page, "layer").locator("pre").inner_text().strip()
    assert page.locator(".copied").count() == 0


EXTREMES = {
    "default": "",
    "much padding": "&padding.length=53&padding.rows=computed",
    "long words": (
        f"&padding.first={LONG},1,2,3,1e9,x,3.21;{LONG}s,_,2,3,-1e-7,123456.789,_&padding.watched=0&padding.length=10"
    ),
    "twelve words": "&padding.second=" + ";".join(f"{LONG},1,2,3,{i},5,-1e300" for i in range(12)),
}


@pytest.mark.slow  # the quick tests look at every part once: test_browser.py
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing_and_the_page_never_scrolls_sideways(
    open_page: Open, scheme: str, viewport: dict[str, int]
) -> None:
    for name, fragment in EXTREMES.items():
        page = open_page(HERE + fragment, color_scheme=scheme, viewport=viewport)
        assert page.locator("#notice").is_hidden()
        if name in ("default", "long words"):
            assert violations(page) == "", name
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], name
