"""The overview, the way from part to part, and questions, in a real browser."""

from __future__ import annotations

from typing import Any

import pytest
from browser import DESKTOP, PARTS, PHONE, Open, flushed, go_to, settle, shown_part, violations


def question(page: Any, part: str, words: str) -> Any:
    return page.locator(f"#panel-{part} .questions li").filter(has_text=words)


@pytest.mark.slow
def test_every_part_can_be_reached_from_the_drawing_by_keyboard(open_page: Open) -> None:
    page = open_page()
    reached = set()
    places = page.locator("#panel-overview button[data-part]")
    texts = places.all_inner_texts()
    for i in range(places.count()):
        places.nth(i).focus()
        goal = places.nth(i).get_attribute("data-part")
        page.keyboard.press("Enter")
        settle(page)
        assert shown_part(page) == goal
        assert page.evaluate("document.activeElement.id") == f"tab-{goal}"
        reached.add(goal)
        title = page.get_by_role("heading", name="A first layer, small enough to compute by hand")
        if "three nodes" in texts[i]:
            page.wait_for_function("() => scrollY > 500")
            assert 0 <= title.bounding_box()["y"] < 150
        else:
            assert page.evaluate("scrollY") == 0
        go_to(page, "#")
    assert reached == set(PARTS) - {"overview"}


def test_the_drawing_shows_the_table_that_all_parts_share(open_page: Open) -> None:
    page = open_page("#part=overview&x=7,5;2,9&norm=layer")
    table, xhat, _ = page.locator(".overview .flow .mini").all()[1:]
    assert table.locator("span").all_inner_texts() == ["7", "5", "2", "9"]
    assert xhat.locator("span").all_inner_texts() == ["1", "−1", "−1", "1"]
    assert xhat.locator(".minus").count() == 2  # a bar to the left: the sign can be seen without colour
    assert "Layer norm" in page.locator(".overview .norm").inner_text()
    go_to(page, "#part=overview&x=7,no;2,9")
    assert table.locator("span").all_inner_texts() == ["7", "–", "2", "9"]


def test_the_drawing_says_where_its_numbers_come_from(open_page: Open) -> None:
    page = open_page("#part=overview")
    note = page.locator("#panel-overview .note")
    assert note.inner_text() == "f and z are the example of the lecture notes: no w and b give all five rows of z."
    go_to(page, "#part=overview&x=1,2")
    assert note.is_hidden()
    go_to(page, "#part=overview&x=")
    assert note.inner_text() == "The table is empty, so there are no numbers here. Fill it in “One table”."


def test_the_buttons_of_training_are_in_the_first_screen_of_a_phone(open_page: Open) -> None:
    page = open_page("#part=training", viewport=PHONE)
    box = page.locator(".live .run").bounding_box()
    assert box["y"] + box["height"] < PHONE["height"] / 2
    page = open_page("#part=backward", viewport={"width": 1366, "height": 768})
    graph = page.locator(".backward-graph").bounding_box()
    assert graph["y"] < 640


def test_the_last_tab_is_whole_on_a_phone(open_page: Open) -> None:
    page = open_page("#part=training", viewport=PHONE)
    left = "() => { const { scrollWidth, clientWidth, scrollLeft } = document.querySelector('.tabs');"
    assert page.evaluate(f"{left} return scrollWidth - clientWidth - scrollLeft; }}") < 1


def test_rows_are_called_what_they_are(open_page: Open) -> None:
    page = open_page("#part=table")
    for norm, words in (("batch", "Each row is an example"), ("instance", "A sample may have several rows")):
        go_to(page, f"#part=table&norm={norm}")
        assert page.locator("#panel-table .intro").inner_text().startswith(words)


def test_parts_lead_to_the_next_one_and_back(open_page: Open) -> None:
    page = open_page()
    for part in PARTS[1:]:
        page.locator(f"#panel-{shown_part(page)} .story .next").click()
        assert shown_part(page) == part
        assert page.evaluate("scrollY") == 0
    assert page.locator(f"#panel-{PARTS[-1]} .story .next").count() == 0
    page.locator(f"#panel-{PARTS[-1]} .story .back").click()
    assert shown_part(page) == PARTS[-2]


def test_a_question_shows_its_answer_after_a_choice(open_page: Open) -> None:
    page = open_page("#part=table")
    card = question(page, "table", "Layer norm: z₁ of row 1 grows by 10.")
    assert card.locator(".because").inner_text() == ""
    card.get_by_role("button", name="those of its column").focus()
    page.keyboard.press("Enter")
    said = "No: those of its row. The μ of its row goes from 5.333 to 8.667. No other example notices."
    assert card.locator(".because").inner_text() == said
    assert card.locator(".because").get_attribute("role") == "status"
    assert card.get_by_role("button", name="✓ those of its row").is_visible()
    assert card.get_by_role("button", name="✗ those of its column").get_attribute("aria-pressed") == "true"
    card.get_by_role("button", name="those of its row").click()
    assert card.locator(".because").inner_text().startswith("Right.")
    assert flushed(page) == "#part=table"  # whoever gets the link predicts, too
    page.get_by_label("x, row 1, column 2", exact=True).fill("8")
    settle(page)
    assert "from 6.333 to 9.667" in card.locator(".because").inner_text()  # the numbers of the moment
    page.get_by_label("x, row 1, column 1", exact=True).fill("no")
    settle(page)
    assert question(page, "table", "Layer norm: z₂ of row 1 grows by 10.").locator(".because").inner_text() == ""


def test_batch_and_layer_norm_light_one_cell_side_by_side(open_page: Open) -> None:
    page = open_page("#part=table")
    sides = {name: page.locator(f".beside [data-norm={name}]") for name in ("batch", "layer")}
    sides["batch"].locator("td[data-row='2'][data-column='1']").click()
    settle(page)
    assert sides["batch"].locator(".shared").all_inner_texts() == ["5", "3", "2", "5", "3"]
    assert sides["layer"].locator(".shared").all_inner_texts() == ["1", "2", "3"]
    for side in sides.values():
        assert side.locator(".chosen").inner_text() == "2"
    assert "1.333" in sides["batch"].locator(".line").inner_text()
    assert flushed(page) == "#part=table&table.cell=xhat,2,1"


def test_strips_of_equal_numbers_look_the_same(open_page: Open) -> None:
    page = open_page("#part=table&weight=2.5298241,1.2000042,0.979801&bias=4,3.6,4.2")
    page.locator(".strips").scroll_into_view_if_needed()
    page.locator(".strips svg").nth(1).wait_for()
    where = "(one) => [...one.querySelectorAll('circle')].map((dot) => Math.round(dot.getAttribute('cx')))"
    line = page.locator(".strips li").first
    assert line.locator(".before svg").evaluate(where) == line.locator(".after svg").evaluate(where)


def test_data_are_in_the_first_screen(open_page: Open) -> None:
    first = {"overview": ".mini", "table": ".sheet.x .cell", "padding": ".tokens", "backward": "table.numbers td"}
    for viewport in ({"width": 1366, "height": 768}, PHONE):
        page = open_page(viewport=viewport)
        assert page.locator("header .bar").bounding_box()["height"] < 55  # one line
        for part, data in first.items():
            go_to(page, f"#part={part}")
            assert page.locator(f"#panel-{part} {data}").first.bounding_box()["y"] < viewport["height"] - 40, part
            tab = page.locator(f"#tab-{part}").bounding_box()
            assert 0 <= tab["x"] <= viewport["width"] - tab["width"], f"the tab of {part} is out of sight"
            assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], part


OUTSIDE = """() => {
    const frame = (one) => one.getBoundingClientRect();
    const places = [...document.querySelectorAll(".overview :is(.place, .aside)")];
    return places.flatMap((place) => [...place.querySelectorAll("b, small, .goal, .mini, .mini span, svg")]
        .filter((one) => frame(one).left < frame(place).left + 2 || frame(one).right > frame(place).right - 2
            || frame(one).top < frame(place).top || frame(one).bottom > frame(place).bottom
            || one.scrollWidth > one.clientWidth + 1 && one.matches(".mini, .mini span"))
        .map((one) => `${one.className}: ${one.textContent}`));
}"""
WIDE_NUMBERS = "x=-1.2345e-300,1e300,-7.77;3,4,-5;5,-1e300,0.00012"


def test_the_drawing_holds_its_numbers_at_every_width(open_page: Open) -> None:
    page = open_page("#part=overview", viewport=PHONE)
    for state in ("", WIDE_NUMBERS):
        go_to(page, f"#part=overview&{state}")
        for width in (360, 705, 768, 1024, 1169, 1200, 1366, 1600):
            page.set_viewport_size({"width": width, "height": 768})
            settle(page)
            assert page.evaluate(OUTSIDE) == [], (state, width)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (state, width)


@pytest.mark.slow
def test_axe_finds_nothing_where_questions_are_answered(open_page: Open) -> None:
    for scheme, viewport in (("light", DESKTOP), ("dark", PHONE)):
        page = open_page(color_scheme=scheme, viewport=viewport)
        for button in page.locator("#panel-overview .questions li button:first-child").all():
            button.click()
        assert violations(page) == "", scheme
