"""The page's padded sentences in a real browser: its numbers are Python's, and what is typed is never lost."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import DESKTOP, PHONE, Open, flushed, violations
from numpy.testing import assert_allclose

import truenorm as tn
from truenorm.explanation import examples
from truenorm.lab.attention import SelfAttention
from truenorm.lab.layers import ForwardContext

HERE = "#part=sentences"
METHODS = dict(zip(("counted", "valid", "layer"), examples.methods(), strict=True))
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
    page.wait_for_function("(text) => document.querySelector('.bar output').textContent === text", arg=f"{rows} rows")


def cell(page: Any, word: str, what: str, number: int) -> Any:
    return page.get_by_label(f"{word}, {what}, number {number}", exact=True)


def said(page: Any) -> str:
    return str(page.locator(".said").inner_text())


@pytest.mark.parametrize("rows", [2, 4, 10, 40, 100])
def test_the_numbers_are_those_of_python(open_page: Open, rows: int) -> None:
    page = open_page(HERE)
    set_padding(page, rows)
    for name, method in METHODS.items():
        assert_allclose(shown(page, name, "moved"), method.moved(rows), rtol=1e-9, atol=1e-12)
        assert_allclose(shown(page, name, "y"), method.normalize(rows)[examples.HOW], rtol=1e-9)
    for name, lengths in (("counted", None), ("valid", examples.LENGTHS)):
        moments = tn.measure(examples.padded_sentences(rows), tn.batch(), lengths=lengths)
        assert_allclose(shown(page, name, "mean"), moments.mean, rtol=1e-9)
        assert_allclose(shown(page, name, "deviation"), np.sqrt(moments.m2 / moments.count), rtol=1e-9)


def test_every_word_has_the_numbers_of_python(open_page: Open) -> None:
    page = open_page(HERE)
    places = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3)]
    for watched, place in enumerate(places):
        page.get_by_label("Watched word", exact=True).select_option(str(watched))
        word = page.get_by_label("Watched word", exact=True).locator("option:checked").inner_text()
        page.wait_for_function("(word) => document.querySelector('.said').innerText.includes(word)", arg=word)
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
        assert shown(page, "counted", "moved") > before
        before = shown(page, "counted", "moved")
    padding(page).fill("0")
    page.wait_for_function("document.querySelector('.said').innerText.startsWith('No padding yet')")
    assert shown(page, "counted", "y") == shown(page, "valid", "y") == still["valid"][0]


def test_what_the_slider_comes_to_is_said_once_it_rests(open_page: Open) -> None:
    page = open_page("#part=sentences")
    page.evaluate(
        "window.heard = []; new MutationObserver(() => live.textContent && heard.push(live.textContent))"
        ".observe(document.getElementById('live'), { childList: true })"
    )
    padding = page.get_by_role("slider", name="Padding", exact=True)
    padding.evaluate(  # one right behind the other, however slow the machine is
        "slider => { for (let i = 0; i < 4; ++i) {"
        " slider.stepUp(); slider.dispatchEvent(new Event('input', { bubbles: true })); } }"
    )
    assert page.locator(".said[role=status]").count() == 0
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
        seen.append(shown(page, "counted", "moved"))
    page.mouse.up()
    assert seen == sorted(set(seen))
    assert_allclose(seen[-1], METHODS["counted"].moved(100), rtol=1e-9)

    padding(page).focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.querySelector('.bar output').textContent === '4 rows'")
    assert padding(page).get_attribute("aria-valuetext") == "4 rows"
    assert_allclose(shown(page, "counted", "moved"), METHODS["counted"].moved(4), rtol=1e-9)
    assert page.locator(".stack tr.pad:not(.statistic)").count() == 4
    assert "6 real rows and 4 of padding: 40 %" in page.locator(".rows").inner_text()


def test_the_curve_is_the_drift_and_moves_the_padding(open_page: Open) -> None:
    page = open_page(HERE)
    scrub = page.get_by_role("slider", name="rows of padding")
    assert scrub.get_attribute("aria-valuetext") == "rows of padding 2"
    scrub.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("document.querySelector('.bar output').textContent === '8 rows'")
    counted, layer, valid = page.locator(".drift .legend b").all_inner_texts()
    assert (counted, layer, valid) == (f"{METHODS['counted'].moved(8):.4g}", "0", "0")
    set_padding(page, 100)
    assert page.locator(".drift .legend b").first.inner_text() == f"{METHODS['counted'].moved(100):.4g}"


def moved_texts(page: Any) -> set[str]:
    """How far the word moved, wherever the page says it."""
    places = (".said .number", ".bar .number", "[data-method=counted] .number", ".drift .legend li:first-child b")
    return {page.locator(place).inner_text() for place in places}


@pytest.mark.parametrize("rows", [2, 4, 6, 44, 100])
def test_a_number_has_the_same_digits_everywhere(open_page: Open, rows: int) -> None:
    page = open_page(f"{HERE}&sentences.fill={rows // 2}")
    text = f"{METHODS['counted'].moved(rows):.4g}"
    assert moved_texts(page) == {text}
    row = card(page, "counted").locator("tr", has_text="moved").locator("td").all_inner_texts()
    assert text in [one.strip("+−") for one in row]
    of_stack = page.locator(".stack .statistic.pad").first.locator("td").all_inner_texts()
    assert card(page, "counted").locator("tr", has_text="mean").locator("td").all_inner_texts() == of_stack


def test_the_texts_are_true_without_padding(open_page: Open) -> None:
    page = open_page(HERE)
    text = page.locator("#panel-sentences").inner_text
    assert "Filled up, they make a rectangle" in text()
    assert "4. So the mean shrinks, and every word moves" in text()
    assert "the slider plays a longer one" not in text()
    padding(page).fill("0")
    page.wait_for_function("document.querySelector('.bar output').textContent === 'none'")
    for false in ("rectangle\n", "the mean shrinks", "are counted when", "the slider plays a longer one"):
        assert false not in text()
    assert page.locator(".tokens caption").inner_text() == "No padding yet: move the slider"
    assert "6 real rows and no padding, so “all rows” are the real rows." in text()
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
    counted, valid = (
        re.findall(r"([\d.]+%) ±", rows.split(f"| {name} |")[1].split("\n")[0]) for name in ("all", "valid")
    )
    text = open_page(HERE).locator("#panel-sentences").inner_text()
    assert f"{counted[0]} of new names were right before and {counted[2]} after" in text
    assert valid[0] == valid[2]
    assert f"{valid[0]} both times" in text


def test_the_result_stays_in_sight_with_the_slider(open_page: Open) -> None:
    page = open_page(HERE, viewport=PHONE)
    page.locator(".drift").scroll_into_view_if_needed()
    box = page.locator(".bar .number").bounding_box()
    assert 0 <= box["y"] < 100
    assert box["x"] + box["width"] <= PHONE["width"]


def attended(embeddings: tuple[np.ndarray, ...]) -> np.ndarray:
    """The lab's self-attention with matrices that change nothing, sentence by sentence."""
    one = np.eye(3)
    layer = SelfAttention(np.concatenate([one, one, one], axis=1), one, np.zeros(3))
    return np.concatenate([layer.forward(e[None], ForwardContext())[0] for e in embeddings])


def test_rows_may_be_computed_by_self_attention(open_page: Open) -> None:
    page = open_page(HERE)
    page.get_by_label("computed by self-attention").check()
    real = attended(EMBEDDINGS)
    padded = np.concatenate([real[:2], np.zeros((2, 3)), real[2:]])
    page.wait_for_function("document.querySelector('.mixture')?.innerText.startsWith('How = 0.25 · How + ')")
    assert_allclose(shown(page, "counted", "y"), tn.forward(padded, tn.batch()).y[4], rtol=1e-9)
    assert_allclose(shown(page, "valid", "y"), tn.forward(real, tn.batch()).y[2], rtol=1e-9)
    assert_allclose(shown(page, "layer", "y"), tn.forward(real, tn.layer()).y[2], rtol=1e-9)
    assert page.locator(".stack input").count() == 0


def test_a_changed_embedding_is_attended_to(open_page: Open) -> None:
    page = open_page(HERE)
    cell(page, "How", "embedding", 2).fill("-1,5")
    assert page.get_by_label("computed by self-attention").is_checked()
    changed = EMBEDDINGS[1].copy()
    changed[0, 1] = -1.5
    real = attended((EMBEDDINGS[0], changed))
    assert_allclose(shown(page, "valid", "y"), tn.forward(real, tn.batch()).y[2], rtol=1e-9)
    assert cell(page, "How", "embedding", 2).evaluate("(input) => input === document.activeElement")
    page.get_by_label("given: example numbers").check()
    page.wait_for_function("document.querySelectorAll('.stack input').length === 18")
    assert_allclose(shown(page, "counted", "moved"), METHODS["counted"].moved(2), rtol=1e-9)


def test_a_given_number_is_typed_and_cells_are_walked(open_page: Open) -> None:
    page = open_page(HERE)
    cell(page, "How", "row", 1).click()
    page.keyboard.press("ArrowUp")
    assert cell(page, "Nitish", "row", 1).evaluate("(input) => input === document.activeElement")
    page.keyboard.press("Enter")
    page.keyboard.type("-20")
    rows = np.concatenate([examples.SENTENCES[0], examples.SENTENCES[1]])
    rows[4, 0] = -20
    assert_allclose(shown(page, "counted", "y"), tn.forward(rows, tn.batch()).y[4], rtol=1e-9)
    assert page.get_by_label("given: example numbers").is_checked()


def test_words_come_and_go(open_page: Open) -> None:
    page = open_page(HERE)
    first, second = page.get_by_label("The first sentence"), page.get_by_label("The second sentence")
    second.fill("How are you")
    page.wait_for_function("document.querySelector('.bar output').textContent === '1 row'")
    real = np.concatenate([examples.SENTENCES[0, :2], examples.SENTENCES[1, :3]])
    padded = np.concatenate([real[:2], np.zeros((1, 3)), real[2:]])
    assert_allclose(shown(page, "counted", "y"), tn.forward(padded, tn.batch()).y[3], rtol=1e-9)
    first.fill("Oh Hi Nitish")  # equally long: nothing to fill up; "How" is still watched
    page.wait_for_function("document.querySelector('.bar output').textContent === 'none'")
    assert "“How” is where it belongs" in said(page)
    assert shown(page, "counted", "moved") == 0
    assert page.locator(".tokens tr").first.locator("td").all_inner_texts() == ["Oh", "Hi", "Nitish"]
    assert page.locator(".stack input").count() == 18
    first.fill("Hi")
    page.wait_for_function("document.querySelector('.bar output').textContent === '2 rows'")
    assert page.locator(".tokens tr").first.locator("td").all_inner_texts() == ["Hi", "<pad>", "<pad>"]
    second.fill("are you today")
    page.wait_for_function("document.querySelector('.said b').innerText === '“are”'")
    page.get_by_role("button", name="Start again").click()
    page.wait_for_function("document.querySelector('.said b').innerText === '“How”'")
    assert (first.input_value(), second.input_value()) == ("Hi Nitish", "How are you today")
    assert flushed(page) == HERE


def test_bad_input_is_shown_where_it_is_and_nothing_is_lost(open_page: Open) -> None:
    page = open_page(HERE)
    one = cell(page, "Nitish", "row", 3)
    one.fill("3.6 apples")
    assert one.get_attribute("aria-invalid") == "true"
    described = page.locator(f"#{one.get_attribute('aria-describedby')}")
    assert described.inner_text() == "No number, so left out: “3.6 apples” (number 3 of “Nitish”)."
    valid = np.ones((8, 3), bool)
    valid[1, 2] = False
    rows = examples.SENTENCES.reshape(8, 3)
    assert_allclose(shown(page, "counted", "y"), tn.forward(rows, tn.batch(), valid=valid).y[4], rtol=1e-9)
    assert violations(page) == ""
    again = open_page(flushed(page))
    assert cell(again, "Nitish", "row", 3).input_value() == "3.6 apples"
    assert cell(again, "Nitish", "row", 3).get_attribute("aria-invalid") == "true"
    one.fill("3.6")
    assert described.is_hidden()
    assert_allclose(shown(page, "counted", "moved"), METHODS["counted"].moved(2), rtol=1e-9)

    for number in (1, 2, 3):
        cell(page, "How", "row", number).fill("")
    assert said(page) == "The row of “How” cannot be read yet: see below."
    assert card(page, "layer").locator(".moved span").inner_text() == "The row of “How” cannot be read yet."
    cell(page, "How", "row", 1).fill("1e308")
    cell(page, "are", "row", 1).fill("-1e308")
    assert said(page) == "The row of “How” meets numbers too large to compute with: see below."

    cell(page, "you", "embedding", 1).fill("?")
    text = "No number, so the word is left out: “?” (number 1 of “you”)."
    assert page.get_by_text(text, exact=True).is_visible()
    assert page.locator(".stack tr.word").nth(4).locator("td").all_inner_texts() == ["–", "–", "–"]


def test_a_sentence_keeps_one_word(open_page: Open) -> None:
    page = open_page(HERE)
    first = page.get_by_label("The first sentence")
    first.fill("   ")
    assert page.get_by_text("A sentence has one word at least. Until it has, “Hi Nitish” stays.").is_visible()
    assert first.get_attribute("aria-invalid") == "true"
    set_padding(page, 10)
    assert first.input_value() == "   "  # what is typed is not taken away
    assert_allclose(shown(page, "counted", "moved"), METHODS["counted"].moved(10), rtol=1e-9)
    first.fill(" ".join("abcdefghijklmn"))
    assert page.get_by_text("There is room for 12 words: the others are left out.").is_visible()
    assert page.locator(".stack tr.word").count() == 16
    first.fill("Hi Nitish")
    assert first.get_attribute("aria-invalid") == "false"


def test_a_link_reproduces_the_sentences(open_page: Open) -> None:
    page = open_page(HERE)
    page.get_by_label("The first sentence").fill("a,b;c &=#% <b>x</b>")
    page.get_by_label("Watched word", exact=True).select_option("1")
    padding(page).fill("20")
    cell(page, "&=#%", "embedding", 1).fill("nonsense,")
    cell(page, "&=#%", "embedding", 1).fill("0.75")
    fragment = flushed(page)
    again = open_page(fragment)
    assert again.locator("#notice").is_hidden()
    assert again.get_by_label("The first sentence").input_value() == "a,b;c &=#% <b>x</b>"
    assert again.locator("#panel-sentences").inner_text() == page.locator("#panel-sentences").inner_text()
    for name in METHODS:
        assert shown(again, name, "y") == shown(page, name, "y")
    assert flushed(again) == fragment


@pytest.mark.parametrize("library", ["NumPy", "PyTorch", "truenorm"])
def test_copied_code_gives_the_numbers_that_are_shown(open_page: Open, library: str) -> None:
    if library == "PyTorch":
        pytest.importorskip("torch")
    page = open_page(HERE + "&sentences.fill=3")
    page.evaluate("navigator.clipboard.writeText = async (text) => { globalThis.copied = text; }")
    for name in METHODS:
        card(page, name).get_by_role("button", name=library).click()
        code, names = page.evaluate("globalThis.copied"), {}
        exec(code, names)
        assert np.shape(names["x"]) == (12, 3)
        assert_allclose(np.asarray(names["y"])[6], shown(page, name, "y"), rtol=1e-9, err_msg=code)
        assert_allclose(
            np.asarray(names["y"])[[0, 1, 6, 7, 8, 9]],
            METHODS[name].normalize(6)[[0, 0, 1, 1, 1, 1], [0, 1, 0, 1, 2, 3]],
            rtol=1e-9,
        )
        assert name == "valid" or len(code.splitlines()) < 30  # nothing is left out: the short form


def test_a_copy_is_seen_and_its_code_can_be_shown(open_page: Open) -> None:
    page = open_page(HERE, permissions=["clipboard-read", "clipboard-write"])
    buttons = card(page, "counted").locator(".copy")
    button, code = buttons.get_by_role("button", name="PyTorch", exact=True), buttons.locator("pre")
    width = button.bounding_box()["width"]
    assert code.is_hidden()
    button.click()
    page.wait_for_function("() => document.querySelector('.copied')?.innerText === 'copied ✓'")
    assert button.bounding_box()["width"] == width
    assert button.is_visible()  # by its name, which has not changed
    page.wait_for_function("() => document.querySelector('#live').textContent === 'Copied as PyTorch.'")
    page.wait_for_function("() => document.querySelector('.copied') === null")
    assert button.inner_text() == "PyTorch"

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


def tab_to(page: Any, key: str, last: str) -> list[str]:
    """What is reached with this key, up to the last; none of it may hide under the bar that stays in sight."""
    reached: list[str] = []
    while not reached or (reached[-1] != last and len(reached) < 100):
        page.keyboard.press(key)
        label, hidden = page.evaluate(
            """() => {
                const one = document.activeElement;
                const bar = document.querySelector("#panel-sentences .bar");
                const under = one.getBoundingClientRect().top < bar.getBoundingClientRect().bottom;
                const above = !document.querySelector("#panel-sentences").contains(one);
                return [one.ariaLabel ?? one.labels?.[0]?.innerText ?? one.innerText,
                    under && !above && !bar.contains(one)];
            }"""
        )
        reached.append(label)
        assert not hidden, f"{label} is under the bar"
    return reached


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nothing_needs_a_mouse(open_page: Open, viewport: dict[str, int]) -> None:
    page = open_page(HERE, viewport=viewport)
    page.locator("#tab-sentences").focus()
    reached = tab_to(page, "Tab", "Start again with the example")
    for label in ("Padding", "Watched word", "The first sentence", "Hi, embedding, number 1", "today, row, number 3"):
        assert label in reached
    assert reached.count("truenorm") == 3
    assert tab_to(page, "Shift+Tab", "Padding")[::-1] == reached[:-1]


EXTREMES = {
    "default": "",
    "much padding": "&sentences.fill=50&sentences.rows=computed",
    "long words": (
        f"&sentences.first={LONG},1,2,3,1e9,x,3.21;{LONG}s,_,2,3,-1e-7,123456.789,_&sentences.watched=0&sentences.fill=9"
    ),
    "twelve words": "&sentences.second=" + ";".join(f"{LONG},1,2,3,{i},5,-1e300" for i in range(12)),
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


def test_editing_is_instant(open_page: Open) -> None:
    words = ";".join(f"w{i},0.1,0.2,0.{i},{i},5,{i % 3}" for i in range(12))
    page = open_page(f"{HERE}&sentences.first={words}&sentences.second={words}&sentences.fill=50")
    took = page.evaluate(
        """async () => {
            const times = [];
            for (let i = 0; i < 9; i++) {
                const input = document.querySelector(".stack input");
                input.value = String(i);
                const start = performance.now();
                input.dispatchEvent(new InputEvent("input", { bubbles: true }));
                await Promise.resolve(); // watchers run in a microtask
                times.push(performance.now() - start);
            }
            return Math.min(...times);
        }"""
    )
    assert took < 200  # about 30 on a quiet machine; the best of nine, as other work is not the page's
