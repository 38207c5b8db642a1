"""The part "why" in a real browser: features on two scales, gradient descent on both, and data that shift."""

from __future__ import annotations

import re
from typing import Any

import pytest
from browser import DESKTOP, PHONE, Open, flushed, go_to, settle, violations

HERE = "#part=why"


def facts(page: Any) -> dict[str, list[str]]:
    """The table of the curvature: a row's name, and both of its values."""
    rows = page.locator(".why .facts tbody tr").evaluate_all(
        "(all) => all.map((row) => [...row.children].map((cell) => cell.textContent))"
    )
    return {name: values for name, *values in rows}


def said(page: Any) -> list[str]:
    """What stands below the two loss surfaces."""
    return [str(text) for text in page.locator(".why .pane .said").all_inner_texts()]


def test_scales_decide_which_learning_rates_work(open_page: Open) -> None:
    page = open_page(HERE)
    assert page.locator(".why .pane .point").count() == 2 * 40
    found = facts(page)
    assert found["condition number λ max / λ min"] == ["159", "1.46"]
    assert found["largest rate that converges, 2 / λ max"] == ["0.0117", "1.68"]
    assert found["steps to within 1% of the lowest loss"] == ["461", "3"]
    assert said(page)[1] == "Step 40: loss 0.0482, within 1% of the lowest."

    marks = page.locator(".why .mark")
    assert marks.all_inner_texts() == ["▲ 0.0117 as they are", "▲ 1.68 standardised"]
    marks.nth(1).click()
    assert facts(page)["learning rate here"] == ["1.68", "1.68"]
    assert "Gradient descent diverges." in said(page)[0]
    assert facts(page)["steps to within 1% of the lowest loss"][0] == "never"
    marks.nth(0).click()
    assert "diverges" not in " ".join(said(page))
    # The mark stands where the slider puts this rate.
    thumb = page.evaluate("""() => {
        const range = document.querySelector(".why .track input");
        const box = range.getBoundingClientRect();
        const mark = document.querySelector(".why .mark").getBoundingClientRect();
        return mark.left - (box.left + 8 + (range.value / 100) * (box.width - 16));
    }""")
    assert abs(thumb + 7) < 8


def test_text_in_the_drawings_of_layer_inputs_has_the_size_of_other_text(open_page: Open) -> None:
    for viewport in (DESKTOP, PHONE):
        page = open_page(HERE, viewport=viewport)
        scales = page.locator(".why .shades svg").evaluate_all("(all) => all.map((one) => one.getScreenCTM().a)")
        assert scales == pytest.approx([1, 1], abs=0.05)


def test_by_keyboard_alone(open_page: Open) -> None:
    page = open_page(HERE)
    page.locator("#tab-why").focus()
    seen: list[str] = []
    for _ in range(14):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate("""() => {
            const at = document.activeElement;
            return at.labels?.[0]?.textContent ?? at.textContent;
        }""")
        )
    for wanted in ("cgpa and iq", "Learning rate", "Best rate for each", "step", "Next step", "Start: w₁", "Start: w₂"):
        assert wanted in seen, (wanted, seen)
    before = said(page)
    page.get_by_label("Learning rate", exact=True).first.focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("button", name="Best rate for each").get_attribute("aria-pressed") == "false"
    page.get_by_label("Start: w₂").focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    assert said(page) != before
    assert "why.w2=0.5" in flushed(page)
    page.locator(".why .play").first.focus()
    page.keyboard.press("Enter")  # without motion: one step, from the end to the start
    assert said(page)[0].startswith("Step 0: ")
    keys = page.locator(".why .keys")
    assert "h₁" not in keys.inner_text()
    page.get_by_label("a hidden layer H").focus()
    page.keyboard.press("Space")
    page.get_by_label("Weights of unit 2 ×").focus()
    narrow = facts(page)["condition number λ max / λ min"]
    assert "h₂ = max(0, 10 · (1 − 0.3 cgpa + 0.9 iq))" in keys.inner_text()
    page.keyboard.press("ArrowRight")
    wider = facts(page)["condition number λ max / λ min"]
    assert float(wider[0]) > 3 * float(narrow[0])
    assert wider[1] == narrow[1]


def test_the_start_is_dragged(open_page: Open) -> None:
    page = open_page(f"{HERE}&why.step=0")
    surface = page.locator(".why .surface").first
    surface.scroll_into_view_if_needed()
    box = surface.locator(".handle").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 60, y + 30, steps=3)
    page.mouse.up()
    settle(page)
    assert re.search(r"why\.w1=-?0\.\d", flushed(page))
    moved = surface.locator(".handle").bounding_box()
    assert 40 < moved["x"] - box["x"] < 80
    page.mouse.click(x, y)  # elsewhere in the drawing: the start goes there
    settle(page)
    assert abs(surface.locator(".handle").bounding_box()["x"] - box["x"]) < 12
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 4000, y - 4000)
    page.mouse.up()
    assert "why.w1=-1&why.w2=1" in flushed(page)


def test_a_link_reproduces_the_view_and_nonsense_is_refused(open_page: Open) -> None:
    fragment = (
        f"{HERE}&why.of=hidden&why.growth=20&why.lr=0.008&why.step=7&why.w1=0.3&why.w2=-0.9&why.shift=-15&why.run=10"
    )
    page = open_page(fragment)
    panel = page.locator("#panel-why")
    shown = panel.inner_text()
    assert said(page)[0].startswith("Step 7: ")
    assert panel.get_by_role("slider", name="shift of iq").get_attribute("aria-valuetext") == "shift of iq −15"
    page.get_by_label("step", exact=True).first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert flushed(page) == fragment
    go_to(page, HERE)
    assert panel.inner_text() != shown
    go_to(page, fragment)
    assert panel.inner_text() == shown
    hostile = "why.of=all&why.growth=1e9&why.lr=1e9&why.step=41&why.w1=NaN"
    go_to(page, f"{HERE}&{hostile}")
    ignored = page.locator("#notice").inner_text()
    assert ignored == f"Ignored in the address, as it cannot be read: {hostile.replace('&', ', ')}."
    go_to(page, f"{HERE}&why.w2=-1.01&why.shift=3&why.run=2&why.lr=-1&why.step=1.5")
    assert page.locator("#notice").inner_text().count("=") == 5
    assert facts(page)["condition number λ max / λ min"] == ["159", "1.46"]
    for edge in ("why.lr=10", "why.lr=1e-300", "why.of=hidden&why.growth=0.1&why.w1=-1&why.w2=-1"):
        go_to(page, f"{HERE}&{edge}")
        assert "NaN" not in panel.inner_text()
        assert "NaN" not in panel.inner_html()


def test_a_shift_and_the_inputs_of_a_layer(open_page: Open) -> None:
    page = open_page(HERE)
    shares = page.locator(".why .shift .said")
    assert shares.nth(0).inner_text().startswith("71.7% right")
    assert shares.nth(1).inner_text().startswith("96.7% right")
    page.get_by_role("slider", name="shift of iq").focus()
    page.keyboard.press("Home")
    assert float(shares.nth(0).inner_text().split("%")[0]) < 60
    assert shares.nth(1).inner_text().startswith("96.7% right")
    runs = page.locator(".why section", has_text="Internal covariate shift")
    assert "from 1.35 to 2910 without batch norm, and from 0.984 to 0.655 with it" in runs.inner_text()
    runs.get_by_label("0.1", exact=True).check()
    assert "from 1.35 to 2.15 without batch norm, and from 0.984 to 1.12 with it" in runs.inner_text()
    assert "why.run=0.1" in flushed(page)
    answer = page.get_by_role("button", name="is about 100 times smaller")
    answer.click()
    assert "Right." in page.locator(".why .questions").inner_text()


# test_browser.py looks at the part as it opens.
@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "viewport"), [("dark", PHONE), ("light", DESKTOP)])
def test_axe_finds_nothing_and_nothing_is_cut_off(open_page: Open, scheme: str, viewport: dict[str, int]) -> None:
    page = open_page(f"{HERE}&why.of=hidden&why.growth=50", color_scheme=scheme, viewport=viewport)
    page.locator(".questions button").first.click()
    assert violations(page) == ""
    for edge in ("", "&why.of=hidden&why.growth=50", "&why.of=hidden&why.growth=0.1&why.lr=10", "&why.lr=0.0001"):
        go_to(page, HERE + edge)
        assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"], edge
