"""The page's padded sentences in a real browser: words and numbers that are typed, and never lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from browser import DESKTOP, PHONE, Open, Processor, flushed, violations
from numpy.testing import assert_allclose
from padding_page import EMBEDDINGS, HERE, METHODS, card, cell, padding, said, set_padding, shown

import truenorm as tn
from truenorm.explanation import examples
from truenorm.lab.attention import SelfAttention
from truenorm.lab.layers import ForwardContext

pytestmark = pytest.mark.slow


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
    assert_allclose(shown(page, "all", "y"), tn.forward(padded, tn.batch()).y[4], rtol=1e-9)
    assert_allclose(shown(page, "valid", "y"), tn.forward(real, tn.batch()).y[2], rtol=1e-9)
    assert_allclose(shown(page, "layer", "y"), tn.forward(real, tn.layer()).y[2], rtol=1e-9)
    assert page.locator(".stack input").count() == 0


def test_a_changed_embedding_is_attended_to_only_when_somebody_wants_that(open_page: Open) -> None:
    page = open_page(HERE)
    kept = page.get_by_text("The stack below keeps its given rows: they do not follow from the embeddings.")
    assert kept.is_hidden()
    cell(page, "How", "embedding", 2).fill("-1,5")
    assert page.get_by_label("given: example numbers").is_checked()
    assert_allclose(shown(page, "all", "moved"), METHODS["all"].change(2), rtol=1e-9)
    assert kept.is_visible()
    cell(page, "How", "embedding", 2).fill("0.5")
    kept.wait_for(state="hidden")
    cell(page, "How", "embedding", 2).fill("-1,5")
    page.get_by_role("button", name="Compute them by self-attention").click()
    assert page.get_by_label("computed by self-attention").is_checked()
    assert page.get_by_label("computed by self-attention").evaluate("(radio) => radio === document.activeElement")
    assert kept.is_hidden()
    changed = EMBEDDINGS[1].copy()
    changed[0, 1] = -1.5
    real = attended((EMBEDDINGS[0], changed))
    assert_allclose(shown(page, "valid", "y"), tn.forward(real, tn.batch()).y[2], rtol=1e-9)
    page.get_by_label("given: example numbers").check()
    page.wait_for_function("document.querySelectorAll('.stack input').length === 18")
    assert_allclose(shown(page, "all", "moved"), METHODS["all"].change(2), rtol=1e-9)


def test_a_given_number_is_typed_and_cells_are_walked(open_page: Open) -> None:
    page = open_page(HERE)
    cell(page, "How", "row", 1).click()
    page.keyboard.press("ArrowUp")
    assert cell(page, "Nitish", "row", 1).evaluate("(input) => input === document.activeElement")
    page.keyboard.press("Enter")
    page.keyboard.type("-20")
    rows = np.concatenate([examples.SENTENCES[0], examples.SENTENCES[1]])
    rows[4, 0] = -20
    assert_allclose(shown(page, "all", "y"), tn.forward(rows, tn.batch()).y[4], rtol=1e-9)
    assert page.get_by_label("given: example numbers").is_checked()


def test_words_come_and_go(open_page: Open) -> None:
    page = open_page(HERE)
    first, second = page.get_by_label("The first sentence"), page.get_by_label("The second sentence")
    second.fill("How are you")
    page.wait_for_function("document.querySelector('.bar output').textContent === 'to 3 words: 1 row'")
    real = np.concatenate([examples.SENTENCES[0, :2], examples.SENTENCES[1, :3]])
    padded = np.concatenate([real[:2], np.zeros((1, 3)), real[2:]])
    assert_allclose(shown(page, "all", "y"), tn.forward(padded, tn.batch()).y[3], rtol=1e-9)
    first.fill("Oh Hi Nitish")  # equally long: nothing to fill up; "How" is still watched
    page.wait_for_function("document.querySelector('.bar output').textContent === 'none'")
    assert "“How” is where it belongs" in said(page)
    assert shown(page, "all", "moved") == 0
    assert page.locator(".tokens tr").first.locator("td").all_inner_texts() == ["Oh", "Hi", "Nitish"]
    assert page.locator(".stack input").count() == 18
    first.fill("Hi")
    page.wait_for_function("document.querySelector('.bar output').textContent === 'to 3 words: 2 rows'")
    assert page.locator(".tokens tr").first.locator("td").all_inner_texts() == ["Hi", "<pad>", "<pad>"]
    second.fill("are you today")
    page.wait_for_function("document.querySelector('#panel-padding .said b').innerText === '“are”'")
    page.get_by_role("button", name="Start again").click()
    page.wait_for_function("document.querySelector('#panel-padding .said b').innerText === '“How”'")
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
    assert_allclose(shown(page, "all", "y"), tn.forward(rows, tn.batch(), valid=valid).y[4], rtol=1e-9)
    assert violations(page) == ""
    again = open_page(flushed(page))
    assert cell(again, "Nitish", "row", 3).input_value() == "3.6 apples"
    assert cell(again, "Nitish", "row", 3).get_attribute("aria-invalid") == "true"
    one.fill("3.6")
    assert described.is_hidden()
    assert_allclose(shown(page, "all", "moved"), METHODS["all"].change(2), rtol=1e-9)

    for number in (1, 2, 3):
        cell(page, "How", "row", number).fill("")
    assert said(page) == "The row of “How” cannot be read yet: see below."
    assert card(page, "layer").locator(".moved span").inner_text() == "The row of “How” cannot be read yet."
    cell(page, "How", "row", 1).fill("1e308")
    cell(page, "are", "row", 1).fill("-1e308")
    assert said(page) == "The row of “How” meets numbers too large to compute with: see below."

    cell(page, "you", "embedding", 1).fill("?")
    page.get_by_label("computed by self-attention").check()
    text = "No number, so the word is left out: “?” (number 1 of “you”)."
    assert page.get_by_text(text, exact=True).is_visible()
    assert page.locator(".stack tr.word").nth(4).locator("td").all_inner_texts() == ["–", "–", "–"]


def test_an_embedding_too_large_leaves_its_sentence_out_in_words_that_agree(open_page: Open) -> None:
    page = open_page(f"{HERE}&padding.rows=computed")
    note = page.get_by_text("Two of the three lines lie on 0")
    assert note.is_visible()
    cell(page, "How", "embedding", 1).fill("1e308")
    note.wait_for(state="hidden")
    counted = page.locator(".means tr").nth(3).locator("td").first.inner_text()
    words = int(counted.split(" / ")[1].split()[0])
    assert f"6 rows of words ({6 - words} left out) and 2 of padding" in page.locator(".rows").inner_text()
    total, mean = float(counted.split(" / ")[0]), float(counted.split("=")[1])
    assert mean == pytest.approx(total / words, abs=1e-4)


def test_four_reviews_make_two_mini_batches(open_page: Open) -> None:
    page = open_page(HERE)
    found = page.locator(".reviews tbody tr").evaluate_all(
        "(rows) => rows.map((row) => [row.cells[0].innerText, row.cells[1].innerText])"
    )
    assert found == [["Hi Nitish", "1"], ["How are you today", "0"], ["I am good", "0"], ["You?", "1"]]
    page.get_by_role("button", name="Use reviews 3 and 4").click()
    page.wait_for_function("document.querySelector('#panel-padding .said b').innerText === '“You?”'")
    assert page.get_by_label("The first sentence").input_value() == "I am good"
    assert page.locator(".bar output").inner_text() == "to 3 words: 2 rows"
    page.get_by_role("button", name="Use reviews 1 and 2").click()
    page.wait_for_function("document.querySelector('#panel-padding .said b').innerText === '“How”'")
    assert flushed(page) == HERE


def test_the_batch_of_the_notes_is_two_thirds_padding(open_page: Open) -> None:
    page = open_page(HERE)
    lengths = [32] * 31 + [100]
    share = 1 - sum(lengths) / (32 * 100)
    assert f"{32 * 100 - sum(lengths):,} of 3,200 rows are padding: {share:.0%}".replace("%", " %") in (
        page.locator(".rows").inner_text()
    )
    page.get_by_role("button", name="About as much here").click()
    page.wait_for_function("document.querySelector('.bar output').textContent === 'to 9 words: 12 rows'")
    assert share == pytest.approx(12 / (12 + 6), abs=0.01)


def test_a_sentence_keeps_one_word(open_page: Open) -> None:
    page = open_page(HERE)
    first = page.get_by_label("The first sentence")
    first.fill("   ")
    assert page.get_by_text("A sentence has one word at least. Until it has, “Hi Nitish” stays.").is_visible()
    assert first.get_attribute("aria-invalid") == "true"
    set_padding(page, 10)
    assert first.input_value() == "   "  # what is typed is not taken away
    assert_allclose(shown(page, "all", "moved"), METHODS["all"].change(10), rtol=1e-9)
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
    assert again.locator("#panel-padding").inner_text() == page.locator("#panel-padding").inner_text()
    for name in METHODS:
        assert shown(again, name, "y") == shown(page, name, "y")
    assert flushed(again) == fragment


def tab_to(page: Any, key: str, last: str) -> list[str]:
    """What is reached with this key, up to the last; none of it may hide under the bar that stays in sight."""
    reached: list[str] = []
    while not reached or (reached[-1] != last and len(reached) < 100):
        page.keyboard.press(key)
        label, hidden = page.evaluate(
            """() => {
                const one = document.activeElement;
                const bar = document.querySelector("#panel-padding .bar");
                const under = one.getBoundingClientRect().top < bar.getBoundingClientRect().bottom;
                const above = !document.querySelector("#panel-padding").contains(one);
                return [one.ariaLabel ?? one.labels?.[0]?.innerText ?? one.innerText,
                    under && !above && !bar.contains(one)];
            }"""
        )
        reached.append(label)
        assert not hidden, f"{label} is under the bar"
    return reached


@pytest.mark.parametrize(
    "viewport",
    [pytest.param(PHONE, id="phone"), pytest.param(DESKTOP, id="desktop", marks=pytest.mark.slow)],
)
def test_nothing_needs_a_mouse(open_page: Open, viewport: dict[str, int]) -> None:
    page = open_page(HERE, viewport=viewport)
    page.locator("#theme").focus()
    reached = tab_to(page, "Tab", "Start again with the example")
    for label in ("Padding", "Watched word", "The first sentence", "Hi, embedding, number 1", "today, row, number 3"):
        assert label in reached
    assert reached.count("truenorm") == 3
    assert tab_to(page, "Shift+Tab", "Padding")[::-1] == reached[:-1]


def test_editing_is_instant(open_page: Open) -> None:
    words = ";".join(f"w{i},0.1,0.2,0.{i},{i},5,{i % 3}" for i in range(12))
    page = open_page(f"{HERE}&padding.first={words}&padding.second={words}&padding.length=61")
    used, seconds = Processor(page).seconds, []
    for turn in range(5):
        before = used()
        page.evaluate(
            """async (text) => {
                const input = document.querySelector(".stack input");
                input.value = text;
                input.dispatchEvent(new InputEvent("input", { bubbles: true }));
                await Promise.resolve(); // watchers run in a microtask
            }""",
            str(turn),
        )
        seconds.append(used() - before)
    assert min(seconds) < 0.2  # of the processor; about 0.03, and more where other work takes the caches
