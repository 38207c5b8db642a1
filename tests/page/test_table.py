"""The page's table in a real browser: what it shows of a normalization, and code that is run."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from browser import DESKTOP, PHONE, Open, flushed, go_to, settle, violations
from numpy.testing import assert_allclose
from table_page import (
    EXAMPLE,
    NORMS,
    cell,
    lit,
    lit_in,
    numbers,
    part,
    table_of,
    texts,
    write,
)

import truenorm as tn


def test_the_notes_example_is_normalised_as_by_the_library(open_page: Open) -> None:
    page = open_page("#part=table")
    out = tn.forward(np.array(EXAMPLE, float), tn.batch())
    assert texts(page, "x") == [[str(one) for one in row] for row in EXAMPLE]
    assert texts(page, "mean") == [["4", "3.6", "4.2"]]
    assert texts(page, "var") == [["6.4", "1.44", "0.96"]]
    assert_allclose(numbers(page, "xhat"), out.y, rtol=1e-3)
    assert_allclose(numbers(page, "y"), out.y, rtol=1e-3)


@pytest.mark.parametrize("name", NORMS)
def test_lit_cells_are_those_that_share_a_mean(open_page: Open, name: str) -> None:
    x = np.arange(24.0).reshape(6, 4) ** 1.5
    page = open_page(f"#x={write(x.round(3).tolist())}&samples=2&groups=2")
    part(page).get_by_label(name.upper() if name == "rms" else name.capitalize(), exact=True).check()
    settle(page)
    sharing = page.evaluate(
        "(name) => truenorm.partition(truenorm.describe(name, { groups: name === 'group' ? 2 : 1 }), 6, 4, [0, 3, 6])",
        name,
    )
    index = np.array(sharing["index"])
    statistics = "var" if name == "rms" else "mean"
    for row, column in ((0, 0), (2, 1), (3, 2), (5, 3)):
        want = {(int(i), int(j)) for i, j in np.argwhere(index == index[row, column])}
        for how in ("hover", "focus"):
            for sheet in ("x", "xhat", "y"):
                getattr(cell(page, sheet, row, column), how)()
                found = lit_in(page, ("x", "xhat", "y", statistics))
                assert found == {"x": want, "xhat": want, "y": want, statistics: {min(want)}}, (how, sheet)
        cell(page, statistics, *min(want)).hover()
        assert lit(page, "x") == want
    assert sum(map(len, texts(page, statistics))) == sharing["size"]
    assert page.locator(".table-part .axes").inner_text().rstrip().endswith(f"{sharing['size']} boxes.")


def test_pointing_at_a_cell_shows_its_formula_with_numbers(open_page: Open) -> None:
    page = open_page("#part=table")
    said = page.locator(".table-part p.unseen")
    for sheet, row, words in (
        ("xhat", 0, "xhat = (x - mean) / sqrt(var + eps) = (7 - 4) / sqrt(6.4 + 1×10⁻⁵) ≈ 1.186"),
        ("mean", 0, "mean = (7 + 2 + 1 + 7 + 3) / 5 = 4"),
        ("var", 0, "var = ((7 - 4)² + (2 - 4)² + (1 - 4)² + (7 - 4)² + (3 - 4)²) / 5 = 6.4"),
        ("y", 1, "y = weight · xhat + bias = 1 · (−0.7906) + 0 ≈ −0.7906"),
    ):
        cell(page, sheet, row, 0).hover()
        assert words in said.text_content()
        assert page.locator(".table-part .explained .formula").count() == 1
        cell(page, sheet, row, 0).focus()
        page.mouse.move(0, 0)
        assert words in said.text_content()
        id = page.evaluate("document.activeElement.getAttribute('aria-describedby')")
        assert words in page.locator(f"#{id}").text_content()


def test_eps_0_on_a_constant_column_gives_the_bias_and_says_so(open_page: Open) -> None:
    page = open_page("#x=4,1;4,2;4,6&bias=0.5,0")
    assert "no spread" not in page.locator(".problems").inner_text()
    part(page).get_by_label("ε", exact=True).focus()
    page.keyboard.press("Home")
    settle(page)
    assert "Column 1 has no spread, and ε is 0" in page.locator(".problems").inner_text()
    assert [row[0] for row in texts(page, "y")] == ["0.5"] * 3
    page.keyboard.press("End")
    settle(page)
    assert_allclose(
        numbers(page, "y"),
        tn.forward(
            np.array([[4, 1], [4, 2], [4, 6.0]]), tn.batch(eps=50), weight=np.ones(2), bias=np.array([0.5, 0])
        ).y,
        rtol=1e-3,
    )


def test_conventions_are_those_of_the_library(open_page: Open) -> None:
    page = open_page("#eps=0.5")
    part(page).get_by_label("n − 1").check()
    part(page).get_by_label("outside of it").check()
    settle(page)
    norm = tn.batch(eps=0.5, ddof=1, eps_at="std")
    assert_allclose(numbers(page, "y"), tn.forward(np.array(EXAMPLE, float), norm).y, rtol=1e-3)
    part(page).get_by_label("RMS").check()
    settle(page)
    assert part(page).get_by_label("n − 1").is_disabled()
    assert page.locator(".table-part .sheet.mean").is_hidden()
    norm = tn.rms(eps=0.5, eps_at="std")
    assert_allclose(numbers(page, "y"), tn.forward(np.array(EXAMPLE, float), norm).y, rtol=1e-3)


def test_weight_and_bias_bring_the_data_back(open_page: Open) -> None:
    page = open_page("#x=1000001,5;1000002,3;1000004,2&eps=0.1&ddof=1")
    part(page).get_by_role("button", name="γ = σ, β = μ").click()
    settle(page)
    assert part(page).get_by_text("y is x again").is_visible()
    assert_allclose(numbers(page, "y"), [[1e6 + 1, 5], [1e6 + 2, 3], [1e6 + 4, 2]], rtol=1e-3)
    assert part(open_page(flushed(page))).get_by_text("y is x again").is_visible()
    part(page).get_by_label("γ (weight) of column 2").fill("0")
    settle(page)
    assert part(page).get_by_text("y is x again").is_hidden()
    part(page).get_by_label("Layer", exact=True).check()
    settle(page)
    assert part(page).get_by_role("button", name="γ = σ").is_disabled()
    assert part(page).get_by_text("no choice of them brings the data back").is_visible()
    part(page).get_by_role("button", name="γ = 1, β = 0").click()
    settle(page)
    assert texts(page, "parameters") == [["1", "1"], ["0", "0"]]


def test_sliders_and_cells_of_weight_and_bias_are_one(open_page: Open) -> None:
    page = open_page("#part=table")
    slider = part(page).get_by_label("β (bias) of column 2")
    slider.focus()
    page.keyboard.press("ArrowRight")
    settle(page)
    moved = float(texts(page, "parameters")[1][1])
    assert moved > 0
    cell(page, "parameters", 1, 1).fill("2,5")
    settle(page)
    assert float(slider.input_value()) == 2.5
    assert_allclose(numbers(page, "y")[:, 1], numbers(page, "xhat")[:, 1] + 2.5, rtol=1e-3)


def test_samples_and_groups_are_seen_and_changed(open_page: Open) -> None:
    page = open_page("#norm=group&x=1,2,3,4;5,6,7,8;9,10,11,13;0,0,1,2")
    assert texts(page, "mean") == [["4.5"], ["5.75"]]
    part(page).get_by_label("Groups: more").click()
    part(page).get_by_label("Groups: more").click()
    settle(page)
    assert part(page).get_by_label("Groups: more").is_disabled()
    part(page).get_by_label("Groups: fewer").click()
    part(page).get_by_label("Samples: fewer").click()
    settle(page)
    assert texts(page, "mean") == [["4.125", "6.125"]]
    assert page.locator(".table-part .x .name").all_inner_texts() == ["sample 1", "group 1", "group 2"]
    assert flushed(page).startswith("#part=table&norm=group&samples=1&groups=2&x=")


def test_dots_show_each_column_before_and_after(open_page: Open) -> None:
    page = open_page("#part=table")
    page.locator(".table-part .strips").scroll_into_view_if_needed()
    page.locator(".table-part .strips svg").nth(5).wait_for()
    names = [one.get_attribute("aria-label") for one in page.locator(".table-part .strips svg").all()]
    assert names[0] == "x, column 1: 5 values, mean 4, deviation 2.53"
    assert names[1].startswith("y, column 1: 5 values, mean ")
    assert names[1].endswith("deviation 1")
    assert page.locator(".table-part .strips svg").first.locator("circle").count() == 5


def copied(page: Any, library: str) -> str:
    page.evaluate("navigator.clipboard.writeText('')")
    part(page).get_by_role("group", name="Copy as code").get_by_role("button", name=library).click()
    page.wait_for_function("async () => (await navigator.clipboard.readText()) !== ''")
    return str(page.evaluate("navigator.clipboard.readText()"))


CASES = {
    "example": "",
    "layer": "#norm=layer&weight=1.5,2,-1&bias=0,1,2",
    "instance": "#norm=instance&samples=2&ddof=1",
    "group": "#norm=group&groups=3&eps=0.01&eps_at=std",
    "rms": "#norm=rms&weight=2,2,2",
    "left out": "#x=7,five,4;2,3,;1,2,3;7,5,6;3,3,4&weight=2,1,0.5&bias=1,0,0",
    "no spread": "#x=4,1;4,2;4,6&eps=0&bias=0.5,0",
}


@pytest.mark.parametrize("library", ["NumPy", "PyTorch", "truenorm"])
def test_copied_code_makes_the_numbers_that_are_shown(open_page: Open, library: str) -> None:
    if library == "PyTorch":
        pytest.importorskip("torch")
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    for name, fragment in CASES.items():
        go_to(page, f"{fragment}&part=table")
        names: dict[str, Any] = {}
        exec(copied(page, library), names)
        shown = numbers(page, "y")
        assert_allclose(
            np.where(np.isnan(shown), 0, shown), np.array(names["y"].tolist()), rtol=6e-4, atol=1e-12, err_msg=name
        )


VIEWS = {
    "example": "",
    "group": "#norm=group&groups=3&table.cell=mean,4,1",
    "wrong": "#x=7,five,4;2,3,&weight=a,b,c&eps=0",
    "wide": f"#norm=instance&x={write(table_of(24, 20))}&table.cell=x,20,17",
    "huge": "#x=123456789,1e-300;1e300,-0.000012345&norm=rms",
}


@pytest.mark.slow  # the quick tests look at every part once: test_browser.py
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing_and_the_page_never_scrolls_sideways(
    open_page: Open, scheme: str, viewport: dict[str, int]
) -> None:
    for name, fragment in VIEWS.items():
        page = open_page("#part=table" + fragment.replace("#", "&"), color_scheme=scheme, viewport=viewport)
        part(page).get_by_text("The whole table as text").click()
        assert violations(page) == "", name
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], name


def test_sheets_scroll_together(open_page: Open) -> None:
    page = open_page(f"#x={write(table_of(40, 40))}")
    cell(page, "x", 39, 39).focus()
    settle(page)  # scrolling is told in a frame, and followed in it
    settle(page)
    for sheet in ("x", "xhat", "y"):
        inside = page.evaluate(
            """(sheet) => {
                const box = document.querySelector(`.table-part .${sheet} .box`).getBoundingClientRect();
                const one = document.querySelector(
                    `.table-part .${sheet} .cell[data-row="39"][data-column="39"]`).getBoundingClientRect();
                return one.left >= box.left && one.right <= box.right + 2 && one.top >= box.top;
            }""",
            sheet,
        )
        assert inside, sheet


def test_a_strange_address_is_no_failure(open_page: Open) -> None:
    page = open_page("#table.cell=y,900,900&samples=1000&groups=1000&norm=group")
    assert lit(page, "y") == {(4, 2)}
    assert json.dumps(texts(page, "mean")).count(",") == 14
    page = open_page("#table.cell=z,1,1&x=%3Cscript%3E,1")
    assert texts(page, "x") == [["<script>", "1"]]
    assert "table.cell=z,1,1" in page.locator("#notice").inner_text()
