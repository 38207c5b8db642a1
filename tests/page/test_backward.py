"""The page's backward pass in a real browser: its numbers are Python's, and every step can be reached in every way."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from backward_page import agrees, copied, entry, number, option, press, progress, snapshot, values
from browser import DESKTOP, PHONE, Open, flushed, go_to, settle, violations
from numpy.testing import assert_allclose

import truenorm as tn
from truenorm.explanation.symbols import in_symbols

X = np.array([[7, 5, 4], [2, 3, 4], [1, 2, 3], [7, 5, 6], [3, 3, 4]], float)
DY = np.array([[1, 0, 0.5], [0, -1, 0], [-1, 0, 1], [0, 0.5, 0], [1, 2, -1]], float)
AFFINE: dict[str, Any] = {"weight": [2.0, 1.0, 0.5], "bias": [0.0, 1.0, -1.0]}
PLAIN: dict[str, Any] = {"weight": [1.0, 1.0, 1.0], "bias": [0.0, 0.0, 0.0]}

# The edges that light up, each by its forward name.
LIT = {
    "dy": "y-loss",
    "dbias": "bias-y",
    "dweight": "times-y weight-times",
    "dxhat": "times-y xhat-times",
    "dx (through xhat)": "deviation-xhat x-deviation",
    "dvar": "rstd-xhat var-rstd",
    "dmean (through xhat)": "deviation-xhat mean-deviation",
    "dmean (through var)": "deviation-var mean-deviation",
    "dmean": "deviation-var deviation-xhat mean-deviation",
    "dx (through var)": "deviation-var x-deviation",
    "dx (through mean)": "x-mean",
    "dx": "deviation-var deviation-xhat x-deviation x-mean",
}
LIT_RMS = {
    **{name: LIT[name] for name in ("dy", "dbias", "dweight", "dxhat", "dvar")},
    "dx (through xhat)": "x-xhat",
    "dx (through var)": "x-var",
    "dx": "x-var x-xhat",
}


CASES: dict[str, tuple[str, tn.Norm, dict[str, Any]]] = {
    "batch": ("", tn.batch(), {**PLAIN}),
    "batch n-1": ("&norm=batch&ddof=1&weight=2,1,0.5&bias=0,1,-1", tn.batch(ddof=1), AFFINE),
    "layer eps outside": (
        "&norm=layer&eps_at=std&eps=0.5&weight=2,1,0.5&bias=0,1,-1",
        tn.layer(eps_at="std", eps=0.5),
        AFFINE,
    ),
    "instance": ("&norm=instance&samples=2", tn.instance(), {**PLAIN, "offsets": [0, 3, 5]}),
    "group": ("&norm=group&samples=2&groups=3&eps=0.25", tn.group(3, eps=0.25), {**PLAIN, "offsets": [0, 3, 5]}),
    "RMS": ("&norm=rms&weight=2,1,0.5&bias=0,1,-1", tn.rms(), AFFINE),
}


@pytest.mark.slow
def test_every_step_shows_what_python_explains(open_page: Open) -> None:
    page = open_page("#part=backward")
    for fragment, norm, arguments in CASES.values():
        go_to(page, f"#part=backward{fragment}")
        check_every_step(page, norm, arguments)


def check_every_step(page: Any, norm: tn.Norm, arguments: dict[str, Any]) -> None:
    want = tn.explain(X, norm, dy=DY, **arguments)
    lit = LIT if norm.center else LIT_RMS
    names = [step.name for step in want.steps if step.part == "backward"]
    assert set(names) == set(lit)
    assert len(names) == (12 if norm.center else 8)
    before: set[str] = set()
    for place, name in enumerate(names, 1):
        seen = snapshot(page)
        shown = in_symbols(name)
        assert seen["progress"].startswith(f"Step {place} of {len(names)}: {shown}, "), norm
        assert seen["lit"] == lit[name], norm
        now = set(lit[name].split())
        assert set(seen["done"].split()) == before - now
        before |= now
        agrees(seen["values"], np.ravel(want[name]))
        assert len(seen["why"]) > 20
        press(page, "Next" if place < len(names) else "All")
    seen = snapshot(page)
    assert seen["progress"] == f"All {len(names)} steps"
    assert (seen["lit"], seen["todo"]) == ("", "")
    assert set(seen["done"].split()) == before
    assert len(before) == (12 if norm.center else 9)
    assert page.locator(".backward-list li").count() == len(names)
    agrees(seen["values"], tn.backward(DY, tn.forward(X, norm, **arguments))[0])


def test_lit_edges_are_wider_and_point_back(open_page: Open) -> None:
    page = open_page("#part=backward&backward.step=dxhat")
    width = "one => parseFloat(getComputedStyle(one.querySelector('.line')).strokeWidth)"
    lit, done, todo = (
        page.locator(f"[data-edge={name}]").evaluate(width) for name in ("xhat-times", "y-loss", "rstd-xhat")
    )
    assert lit > 2 * done > 2 * todo > 0
    # Backward arrows stand at the upper end of these edges, forward ones at the lower.
    tip = "one => one.querySelector('.head').points[0].y - one.querySelector('.line').getPointAtLength(0).y"
    assert page.locator("[data-edge=xhat-times]").evaluate(tip) < 0
    assert page.locator("[data-edge=y-loss]").evaluate(tip) < 0
    assert page.locator("[data-edge=deviation-xhat]").evaluate(tip) > 0
    assert page.get_by_role("img", name="How y is computed from x. Back along y → γ · x̂ → x̂.").is_visible()


def test_steps_by_keyboard_alone(open_page: Open) -> None:
    page = open_page("#part=backward")
    page.get_by_role("button", name="Change x, γ, β or ε in “One table”").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "First"
    for place in range(2, 13):
        page.keyboard.press("ArrowRight" if place % 2 else "ArrowDown")
        assert progress(page).startswith(f"Step {place} of 12")
    page.keyboard.press("ArrowRight")
    assert progress(page).startswith("Step 12 of 12")
    page.keyboard.press("ArrowLeft")
    assert progress(page).startswith("Step 11 of 12: dx (through μ)")
    page.keyboard.press("End")
    assert progress(page) == "All 12 steps"
    page.keyboard.press("ArrowLeft")
    assert progress(page).startswith("Step 12 of 12")
    page.keyboard.press("Home")
    assert progress(page).startswith("Step 1 of 12")
    page.keyboard.press("ArrowUp")
    assert progress(page).startswith("Step 1 of 12")
    # A button that can do nothing now keeps the focus, so that nobody is thrown out.
    assert page.evaluate("document.activeElement.textContent") == "First"
    assert page.evaluate("document.activeElement.getAttribute('aria-disabled')") == "true"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    for _ in range(3):
        page.keyboard.press("Enter")
    assert progress(page).startswith("Step 4 of 12")


def test_a_cell_is_chosen_by_click_and_by_arrows(open_page: Open) -> None:
    page = open_page("#part=backward&backward.step=dxhat&weight=2,1,0.5")
    grid = page.get_by_role("grid")
    where = page.locator(".backward-where")
    assert where.inner_text() == "With the numbers of row 1, column 1:"
    grid.get_by_role("gridcell").nth(0).focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowUp"):
        page.keyboard.press(key)
    assert where.inner_text() == "With the numbers of row 2, column 3:"
    assert page.evaluate("document.activeElement.textContent") == "4"
    assert grid.locator("[aria-selected=true]").count() == grid.locator("[tabindex='0']").count() == 1
    assert grid.locator(".shared").count() == 5
    page.locator(".backward-details td").nth(2).click()
    assert where.inner_text() == "With the numbers of row 1, column 3:"
    assert page.locator(".formula-pieces math").first.text_content() == "dx^=0.5·0.5"
    entry(page, 4, 2).focus()
    assert where.inner_text() == "With the numbers of row 4, column 2:"
    press(page, "Next")
    press(page, "Next")
    page.locator(".backward-details td").nth(0).click()
    assert where.inner_text() == "With the numbers of column 1:"


@pytest.mark.parametrize("norm", ["batch", "rms"])
def test_losses_and_measured_gradients(open_page: Open, norm: str) -> None:
    page = open_page(f"#part=backward&norm={norm}&backward.cell=3,2&backward.step=dx&weight=2,1,0.5&bias=0,1,-1")
    for loss in ("cell", "squares", "sum", "given"):
        check_loss(page, loss, norm)


def check_loss(page: Any, loss: str, norm: str) -> None:
    titles = {"given": "My own dy", "cell": "One cell of y", "squares": "Half of all y²", "sum": "Sum of all y"}
    option(page, titles[loss]).check()
    out = tn.forward(X, {"batch": tn.batch, "rms": tn.rms}[norm](), **AFFINE)
    one = np.zeros_like(X)
    one[2, 1] = 1
    dy = {"given": DY, "cell": one, "squares": out.y, "sum": np.ones_like(X)}[loss]
    total = {"given": DY * out.y, "cell": one * out.y, "squares": out.y**2 / 2, "sum": out.y}[loss].sum()
    dx = tn.backward(dy, out)[0]
    agrees(values(page), dx)
    assert_allclose(number(page.locator("[data-box=loss] .number").text_content()), total, rtol=6e-3, atol=1e-12)
    shown = {
        name: number(page.locator(f"[data-check={name}]").inner_text()) for name in ("measured", "dx", "difference")
    }
    assert_allclose(shown["dx"], dx[2, 1], rtol=1e-9, atol=1e-12)
    assert_allclose(shown["measured"], dx[2, 1], rtol=1e-6, atol=1e-9)
    assert shown["difference"] < 1e-8
    verdict = page.locator(".backward-verdict").inner_text()
    assert re.fullmatch(
        r"In all 15 cells, the largest difference is \S+ of the largest path of dx: (8|9|1\d) digits of it agree\.",
        verdict,
    )


def test_dy_is_edited_and_bad_input_is_shown_where_it_is(open_page: Open) -> None:
    page = open_page("#part=backward&backward.step=dx")
    wrong = page.locator("#panel-backward .problem")
    assert wrong.is_hidden()
    entry(page, 2, 3).fill("-4,5")
    dy = DY.copy()
    dy[1, 2] = -4.5
    out = tn.forward(X, tn.batch())
    agrees(values(page), tn.backward(dy, out)[0])
    entry(page, 1, 1).fill("1e")
    dy[0, 0] = 0
    agrees(values(page), tn.backward(dy, out)[0])
    assert entry(page, 1, 1).get_attribute("aria-invalid") == "true"
    assert wrong.inner_text() == "Not a number in dy: row 1, column 1. Until that changes, it counts as 0."
    # Another loss and back, the text is still there.
    option(page, "Sum of all y").check()
    assert wrong.is_hidden()
    assert entry(page, 1, 1).input_value() == "1"
    assert not entry(page, 1, 1).is_editable()
    option(page, "My own dy").check()
    assert entry(page, 1, 1).input_value() == "1e"
    option(page, "Layer").check()
    entry(page, 1, 1).press("End")
    entry(page, 1, 1).press_sequentially("1")
    dy[0, 0] = 10
    assert wrong.is_hidden()
    agrees(values(page), tn.backward(dy, tn.forward(X, tn.layer()))[0])


def test_dy_takes_a_block_from_a_spreadsheet_and_arrow_keys(open_page: Open) -> None:
    page = open_page("#part=backward")
    entry(page, 4, 2).evaluate(
        """(input, text) => {
            const clipboardData = new DataTransfer();
            clipboardData.setData("text/plain", text);
            input.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
        }""",
        "8\t9\t10\r\n11\t\t12\r\n13\t14\t15\r\n",
    )
    got = [[entry(page, row, column).input_value() for column in (1, 2, 3)] for row in (3, 4, 5)]
    assert got == [["-1", "0", "1"], ["0", "8", "9"], ["1", "11", ""]]
    entry(page, 1, 1).focus()
    for key in ("ArrowDown", "Enter", "End", "ArrowRight"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "dy, row 3, column 2"
    page.keyboard.type("7")
    assert entry(page, 3, 2).input_value() == "7"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "dy, row 3, column 1"


def test_a_link_reproduces_the_backward_pass(open_page: Open) -> None:
    page = open_page("#part=backward&norm=layer&ddof=1&weight=2,1,0.5")
    entry(page, 2, 2).fill("2.5")
    entry(page, 5, 3).fill("what?")
    for _ in range(5):
        press(page, "Next")
    page.get_by_role("gridcell").nth(4).click()
    text = page.locator("#panel-backward").inner_text()
    fragment = flushed(page)
    assert "backward.cell=2,2" in fragment
    assert "backward.step=dvar" in fragment
    again = open_page(fragment)
    assert again.locator("#notice").is_hidden()
    assert again.locator("#panel-backward").inner_text() == text
    assert entry(again, 5, 3).input_value() == "what?"
    assert entry(again, 2, 2).input_value() == "2.5"
    again.evaluate("location.hash = '#part=backward&backward.step=all&backward.loss=cell'")
    again.wait_for_function("document.querySelector('.backward-progress').textContent.startsWith('All')")
    assert option(again, "One cell of y").is_checked()


def test_nonsense_in_the_address_leaves_the_rest(open_page: Open) -> None:
    page = open_page("#part=backward&backward.cell=0,a&backward.step=dz&backward.loss=hinge&norm=rms")
    assert progress(page).startswith("Step 1 of 8: dy")
    assert "backward.cell=0,a" in page.locator("#notice").inner_text()


def test_a_step_or_a_cell_that_is_not_there_gives_way_to_the_nearest(open_page: Open) -> None:
    page = open_page("#part=backward&backward.step=dmean&backward.cell=9,9")
    assert progress(page).startswith("Step 9 of 12: dμ")
    assert page.locator(".backward-where").inner_text() == "With the numbers of column 3:"
    option(page, "RMS").check()
    assert progress(page).startswith("Step 6 of 8: dσ², how the loss changes with the mean of the squares")
    assert page.locator("[data-box=mean], [data-box=deviation]").count() == 0
    press(page, "Next")
    assert progress(page).startswith("Step 7 of 8: dx (through σ²)")
    option(page, "Batch").check()
    assert progress(page).startswith("Step 10 of 12: dx (through σ²)")


@pytest.mark.parametrize("library", ["NumPy", "PyTorch", "truenorm"])
def test_copied_code_gives_the_dx_that_is_shown(open_page: Open, library: str) -> None:
    if library == "PyTorch":
        pytest.importorskip("torch")
    page = open_page("#part=backward&backward.step=dx&norm=rms&weight=2,1,0.5")
    check_copied_code(page, library)
    go_to(page, "#part=backward&backward.step=dx&x=7,5,4;2,no,4;1,2,3;7,5,6;3,3,4&backward.loss=squares&bias=1,2,3")
    check_copied_code(page, library)


def check_copied_code(page: Any, library: str) -> None:
    names: dict[str, Any] = {}
    exec(copied(page, library), names)
    dx = names["dx"].detach().numpy() if library == "PyTorch" else names["dx"]
    shown = values(page)
    agrees([[text if text != "–" else "0" for text in row] for row in shown], dx)
    assert np.abs(dx).max() > 1e-6


REASONS = [  # the fragment, why the gradient is 0, and what the measurement says
    (
        "&x=5,1;5,2;5,3&eps=0",
        "All numbers in column 1 are equal, and ε is 0: there is nothing to divide by.",
        "Where there is nothing to divide by, y jumps",
    ),
    ("&x=5,1;5,2;5,3", "All numbers in column 1 are equal: there is no spread", "In all 6 cells"),
    (
        "&x=5,1,8",
        "There is only one number in column 1, and it is its own mean",
        "In all 3 cells, both are the same.",
    ),
    ("&x=5,1,8&ddof=1", "There is only one number in column 1", "In all 3 cells, both are the same."),
    (
        "&x=0,0;1,2&norm=rms&eps=0",
        "All numbers in row 1 are 0, and ε is 0",
        "Where there is nothing to divide by",
    ),
    ("&x=5,1,8&eps=0", "There is only one number in column 1", "In all 3 cells, both are the same."),
    ("&x=1e200,1;2e200,5;-1e200,7", "In column 1, the numbers, or their squares, are too large", "In all 6 cells"),
    (
        "&x=1.7e308,-1.7e308;-1.7e308,1.7e308",
        "are too large to compute with",
        "Nothing can be measured: the numbers, or their squares, are too large to compute with.",
    ),
    ("&x=1e308;1e308;1e308", "are equal", "Nothing can be measured: next to these numbers, some are too large"),
    ("&eps=1e-320&eps_at=std&x=1,2", "ε is too small", "Nothing can be measured: ε is too small"),
    ("&backward.loss=sum", "The paths cancel", "In all 15 cells"),
    ("&backward.dy=0,0,0;0,0,0;0,0,0;0,0,0;0,0,0", "all gradients are 0", "both are the same."),
]


def test_a_gradient_of_0_has_its_reason(open_page: Open) -> None:
    page = open_page("#part=backward")
    for fragment, reason, verdict in REASONS:
        go_to(page, f"#part=backward&backward.step=dx{fragment}")
        assert reason in page.locator(".backward-details .notice").inner_text(), fragment
        assert verdict in page.locator(".backward-verdict").inner_text(), fragment
        press(page, "All")
        assert reason in page.locator(".backward-details .notice").inner_text(), fragment


def test_a_cell_without_a_number_is_left_out(open_page: Open) -> None:
    page = open_page("#part=backward&backward.step=dx&x=7,5;oops,3;1,2;7,6&backward.cell=2,1")
    valid = np.array([[1, 1], [0, 1], [1, 1], [1, 1]], bool)
    x = np.array([[7, 5], [np.nan, 3], [1, 2], [7, 6]])
    dx = tn.backward(DY[:4, :2], tn.forward(x, tn.batch(), valid=valid))[0]
    agrees(values(page), np.where(valid, dx, np.nan))
    assert values(page)[1][0] == "–"
    assert "holds no number" in page.locator(".backward-details .notice").inner_text()
    assert "no number in row 2, column 1 to move" in page.locator(".backward-check .notice").inner_text()
    assert page.get_by_role("gridcell", name="oops").get_attribute("class").split()[0] == "pad"


def test_an_empty_table_says_so(open_page: Open) -> None:
    page = open_page("#part=backward&x=")
    panel = page.locator("#panel-backward")
    assert "The table is empty" in panel.inner_text()
    assert panel.locator(".backward-steps").is_hidden()
    panel.get_by_role("button", name="Fill it").click()
    assert page.locator("#panel-table").is_visible()


def test_a_large_table_stays_in_its_boxes(open_page: Open) -> None:
    x = np.random.default_rng(0).normal(size=(64, 64)).round(2)
    cells = ";".join(",".join(map(str, row)) for row in x)
    page = open_page("#part=backward")
    page.set_default_timeout(30_000)
    fragment = f"#part=backward&backward.step=dx&backward.loss=squares&weight=2,1&backward.cell=60,50&x={cells}"
    page.evaluate("fragment => { location.hash = fragment; }", fragment)
    page.get_by_text("With the numbers of row 60, column 50:").wait_for()
    weight = np.r_[2.0, np.ones(63)]
    out = tn.forward(x, tn.batch(), weight=weight)
    got, want = values(page), tn.backward(out.y, out)[0]
    assert_allclose([[number(text) for text in row] for row in got], want, rtol=6e-4, atol=1e-12)
    assert "In the 64 cells that share one mean with it" in page.locator(".backward-verdict").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= DESKTOP["width"]
    # Each box has scrolled to the chosen cell, and the page has not moved.
    for box in page.locator(".backward .box:has(.chosen)").all():
        assert box.evaluate(
            """box => {
                const [a, b] = [box.getBoundingClientRect(), box.querySelector('.chosen').getBoundingClientRect()];
                return b.left >= a.left && b.right <= a.right && b.top >= a.top && b.bottom <= a.bottom;
            }"""
        )
    assert page.evaluate("scrollY") == 0


def test_bessels_correction_is_chosen_here_too(open_page: Open) -> None:
    page = open_page("#part=backward&backward.step=dvar")
    panel = page.locator("#panel-backward")
    assert "the variance divides by n." in panel.inner_text()
    panel.get_by_label("n − 1, Bessel’s correction").check()
    assert "the variance divides by n − 1." in panel.inner_text()
    assert flushed(page) == "#part=backward&ddof=1&backward.step=dvar"
    panel.get_by_label("RMS", exact=True).check()
    assert panel.get_by_label("n − 1, Bessel’s correction").is_disabled()


@pytest.mark.slow  # the quick tests look at every part once: test_browser.py
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing_in_the_backward_pass(open_page: Open, scheme: str, viewport: dict[str, int]) -> None:
    page = open_page("#part=backward&backward.step=dvar", color_scheme=scheme, viewport=viewport)
    bad = "#part=backward&norm=group&groups=3&backward.step=dx&x=1e9,2,3;abc,5,6;1e-9,,9;-7,8,9&backward.dy=1,z,3"
    for fragment in (None, "#part=backward&backward.step=all&norm=rms&backward.loss=squares", bad):
        if fragment:
            go_to(page, fragment)
        assert violations(page) == ""
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


WIDE = """() => [...document.querySelectorAll("[role=tabpanel]:not([hidden]) math")]
    .filter((one) => one.clientWidth && one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent)"""


@pytest.mark.slow
@pytest.mark.parametrize(("part", "following"), [("backward", "Next"), ("network", "Next ›")])
def test_on_a_phone_every_formula_wraps(open_page: Open, part: str, following: str) -> None:
    page = open_page(f"#part={part}", viewport=PHONE)
    button = page.locator(f"#panel-{part}").get_by_role("button", name=following, exact=True)
    for _ in range(50):
        assert page.evaluate(WIDE) == []
        if button.is_disabled():
            return
        button.click()
        settle(page)
    pytest.fail("the last step was not reached")
