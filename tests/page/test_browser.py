"""The page in a real browser: its shell. What each part does has files of its own: test_<part>*.py.

Every test fails on an error in the console and on any request but the page itself: see browser.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from browser import DESKTOP, PARTS, PHONE, Open, flushed, go_to, settle, shown_part, violations

from truenorm import page as page_source

HERE = Path(__file__).parent


def test_the_page_opens_without_an_error(open_page: Open) -> None:
    page = open_page()
    assert page.title() == "Normalization, number by number"
    assert shown_part(page) == "overview"
    assert page.locator("#notice").is_hidden()
    assert page.evaluate("location.hash") == ""


def test_links_without_a_part_lead_where_they_did(open_page: Open) -> None:
    page = open_page("#norm=layer")  # from before there was an overview: it was written for the table
    assert shown_part(page) == "table"
    assert page.locator("#panel-table").get_by_label("Layer", exact=True).is_checked()
    for fragment, part in {"#theme=dark": "overview", "#table.cell=x,2,1": "table", "#": "overview"}.items():
        go_to(page, fragment)
        assert shown_part(page) == part, fragment
        assert page.locator("#notice").is_hidden()


def test_tabs_work_by_keyboard_alone(open_page: Open) -> None:
    page = open_page()
    page.locator("#theme").focus()
    page.keyboard.press("Shift+Tab")
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "Home", "End"):
        page.keyboard.press(key)
        seen.append(shown_part(page))
        assert page.evaluate("document.activeElement.id") == f"tab-{seen[-1]}"
    assert seen == ["why", "table", "padding", "backward", "padding", "overview", "training"]


def test_a_link_reproduces_the_view(open_page: Open) -> None:
    page = open_page("#part=table")
    page.locator("#panel-table").get_by_label("Layer", exact=True).check()
    page.locator("#theme").select_option("dark")
    numbers = page.locator("#panel-table").inner_text()
    page.locator("#tab-table").click()
    fragment = flushed(page)
    assert fragment == "#part=table&theme=dark&norm=layer"
    again = open_page(fragment)
    assert again.locator("#panel-table").get_by_label("Layer", exact=True).is_checked()
    assert again.evaluate("document.documentElement.dataset.theme") == "dark"
    assert again.locator("#panel-table").inner_text() == numbers
    again.evaluate("location.hash = '#part=training'")
    again.wait_for_function("!document.getElementById('panel-training').hidden")
    assert again.locator("#theme").input_value() == "auto"


def test_nonsense_in_the_address_is_said_politely(open_page: Open) -> None:
    page = open_page("#norm=softmax&x=1,2;3&part=nowhere&eps=%E0%A4%A")
    assert shown_part(page) == "overview"
    said = page.locator("#notice").inner_text()
    assert said.startswith("Ignored in the address, as it cannot be read: part=nowhere, norm=softmax")
    page.evaluate("location.hash = '#norm=layer'")
    page.wait_for_function("document.getElementById('notice').hidden")


def test_nothing_is_lost_by_leaving_right_away(open_page: Open) -> None:
    page = open_page("#part=table")
    cell = page.get_by_label("x, row 1, column 1", exact=True)
    cell.fill("12.5")
    page.reload()
    assert cell.inner_text() == "12.5"
    page.evaluate("location.hash = '#part=backward'")
    dy = page.get_by_label("dy, row 1, column 1", exact=True)
    dy.fill("9")
    page.go_back()
    assert cell.inner_text() == "12.5"
    page.go_forward()
    page.wait_for_function("!document.getElementById('panel-backward').hidden")
    assert shown_part(page) == "backward"
    assert dy.input_value() == "9"
    page.locator("#tab-padding").click()
    page.go_back()
    page.wait_for_function("!document.getElementById('panel-backward').hidden")
    assert dy.input_value() == "9"


def test_long_words_and_numbers_do_not_widen_the_page(open_page: Open) -> None:
    wide = "x=-1.2345e-300,1e300;3,4;5,-1e300"
    page = open_page(viewport={"width": 320, "height": 640})
    for fragment in ("z" * 62, f"part=backward&backward.step=all&{wide}", "x=1.7e308,-1.7e308;-1.7e308,1.7e308"):
        go_to(page, f"#{fragment}")
        assert page.evaluate("document.documentElement.scrollWidth") == 320, fragment
        assert "NaN to" not in page.locator("main").inner_text()


def test_golden_vectors_agree_in_the_browser(open_page: Open) -> None:
    compare = (HERE / "golden.mjs").read_text("utf-8").replace("export function", "function")
    golden = json.loads((HERE / "golden.json").read_text("utf-8"))
    page = open_page()
    found = page.evaluate(f"(golden) => {{ {compare}; return disagreements(globalThis.truenorm, golden); }}", golden)
    assert found == []
    golden["shapes"][0]["want"]["y"][0][0] += 1e-9
    found = page.evaluate(f"(golden) => {{ {compare}; return disagreements(globalThis.truenorm, golden); }}", golden)
    assert len(found) == 1


def test_a_script_that_was_put_in_does_not_run(browser: Any, address: str) -> None:
    with browser.new_page() as page:
        page.goto(address)
        page.evaluate(
            "document.body.append(Object.assign(document.createElement('script'), {textContent: 'globalThis.ran = 1'}))"
        )
        assert page.evaluate("globalThis.ran ?? null") is None


VIEWS = [
    pytest.param("light", DESKTOP, id="desktop-light"),
    pytest.param("dark", PHONE, id="phone-dark"),
    pytest.param("dark", DESKTOP, id="desktop-dark"),
    pytest.param("light", PHONE, id="phone-light"),
]


@pytest.mark.slow  # axe takes seconds for a part
@pytest.mark.parametrize(("scheme", "viewport"), VIEWS)
def test_axe_finds_nothing(open_page: Open, scheme: str, viewport: dict[str, int]) -> None:
    page = open_page(color_scheme=scheme, viewport=viewport)
    for part in PARTS:
        page.locator(f"#tab-{part}").click()
        assert violations(page) == "", part
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], f"{part} is too wide"
    for part in PARTS:  # a part's style must not reach elements of other parts
        assert page.locator(f".{part}").count() <= 1, part


BROKEN = {
    "a syntax error": ("table/grid.js", "export const = 1;", "Unexpected token '='"),
    "a module that is not there": ("table/grid.js", 'import "#table/nothing.js";', "#table/nothing.js"),
    "an export that is not there": ("table/grid.js", "export const a = 1;", "createSheet"),
    "an error on the way": ("main.js", 'throw new Error("stop");', "stop"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_module_that_does_not_load_is_shown(browser: Any, tmp_path: Path, case: str) -> None:
    path, text, said = BROKEN[case]
    file = tmp_path / "broken.html"
    file.write_text(page_source.assemble({**page_source.sources(), path: text}), "utf-8")
    with browser.new_page() as page:
        failures: list[str] = []
        page.on("pageerror", lambda error: failures.append(str(error)))
        page.goto(file.as_uri())
        page.wait_for_function(
            "() => document.getElementById('failed').textContent.startsWith('This page failed to start. ')"
        )
        assert said in page.locator("#failed").inner_text()
        if case == "a syntax error":  # the same for all, and it takes a moment
            page.wait_for_function("() => getComputedStyle(failed).opacity === '1'")
        assert said in "".join(failures)


def test_without_javascript_the_page_says_what_it_needs(browser: Any, address: str) -> None:
    with browser.new_page(java_script_enabled=False) as page:
        page.goto(address)
        assert "its JavaScript did not start" in page.locator("#failed").inner_text()


def test_a_stack_trace_names_the_file(open_page: Open) -> None:
    stack = open_page().evaluate(
        "(() => { try { truenorm.describe('none'); } catch (error) { return error.stack; } })()"
    )
    assert "truenorm/maths/normalization.js:" in stack


def test_modules_keep_their_names_to_themselves(open_page: Open) -> None:
    found = open_page().evaluate("['NORMS', 'html', 'formatNumber', 'start'].map((name) => typeof globalThis[name])")
    assert found == ["undefined"] * 4


def test_numbers_at_the_end_of_what_there_is(open_page: Open) -> None:
    page = open_page("#x=1e308,1;-1e308,2;1.7e308,3")
    page.locator(".table-part .strips").scroll_into_view_if_needed()
    page.locator(".table-part .strips svg").nth(3).wait_for()
    assert page.locator(".table-part .strips svg").first.locator("circle").count() == 0
    for x in ("1e308;1e308;1e308", "1.7e308,-1.7e308;-1.7e308,1.7e308"):
        page.evaluate("(x) => { location.hash = `part=backward&x=${x}`; }", x)
        page.get_by_text("Nothing can be measured:").wait_for()
        assert "NaN" not in page.locator(".backward-check").inner_text()


LEAVING = {
    "a mouse that goes to the bar above": "document.dispatchEvent(new MouseEvent('mouseleave'))",
    "another window": "dispatchEvent(new Event('blur'))",
    "another tab": "document.dispatchEvent(new Event('visibilitychange'))",
    "a finger that lets go": "document.body.dispatchEvent(new PointerEvent('pointerup', { bubbles: true }))",
    "F5": "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'F5', bubbles: true }))",
    "Alt+Left": "document.body.dispatchEvent(new KeyboardEvent('keydown', { altKey: true, bubbles: true }))",
}


def test_the_last_of_many_quick_changes_is_in_the_address_when_somebody_leaves(open_page: Open) -> None:
    page = open_page()
    for name, leave in LEAVING.items():
        before, after, wanted = page.evaluate(
            """async () => {
                const select = document.getElementById("theme");
                const choose = async (theme) => {
                    select.value = theme;
                    select.dispatchEvent(new Event("change"));
                    await null; // watchers, and what writes the address, run in a microtask
                };
                for (let turn = 0; turn < 40; turn++) await choose(turn % 2 ? "light" : "dark");
                const wanted = location.hash === "#theme=dark" ? "#theme=light" : "#theme=dark";
                await choose(wanted.slice(7));
                const before = location.hash;
                LEAVE;
                return [before, location.hash, wanted];
            }""".replace("LEAVE", leave)
        )
        assert before != wanted, f"{name}: nothing was waiting to be written"
        assert after == wanted, name


def test_an_address_that_was_just_typed_is_not_overwritten_by_what_was_waiting(open_page: Open) -> None:
    page = open_page()
    page.evaluate(
        """async () => {
            const select = document.getElementById("theme");
            for (let turn = 0; turn < 41; turn++) {
                select.value = turn % 2 ? "light" : "dark";
                select.dispatchEvent(new Event("change"));
                await null;
            }
            location.hash = "#part=padding"; // the page hears of it in a later task
            dispatchEvent(new Event("blur"));
        }"""
    )
    settle(page)
    assert shown_part(page) == "padding"
    assert page.evaluate("location.hash") == "#part=padding"


def test_the_browsers_back_leads_to_the_part_before(open_page: Open) -> None:
    page = open_page("#part=padding&padding.length=6")
    page.locator("#tab-table").click()
    page.get_by_role("radio", name="Layer").check()
    page.locator("#tab-network").click()
    flushed(page)
    for travel, part in ((page.go_back, "table"), (page.go_back, "padding"), (page.go_forward, "table")):
        travel()
        settle(page)
        assert shown_part(page) == part
    assert page.get_by_role("radio", name="Layer").is_checked()
    assert page.evaluate("location.hash") == "#part=table&norm=layer&padding.length=6"


BEYOND = """() => [...document.querySelectorAll("section:not([hidden]) *")].filter((one) => {
    if (!(one instanceof HTMLElement) || !one.checkVisibility() || one.closest(".unseen")) return false;
    if (one.matches(".box, .strips")) return one.scrollWidth > one.clientWidth;
    return !one.closest(".box") && one.getBoundingClientRect().right > innerWidth;
}).map((one) => `${one.className}: ${one.textContent}`)"""


@pytest.mark.slow
def test_on_screens_nothing_is_beyond_the_edge(open_page: Open) -> None:
    page = open_page()
    for part in PARTS:
        go_to(page, f"#part={part}")
        for width in (768, 900, 1024, 1200, 1366, 1600):
            page.set_viewport_size({"width": width, "height": 768})
            settle(page)
            assert page.evaluate(BEYOND) == [], (part, width)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (part, width)
    page.set_viewport_size(DESKTOP)  # other tests use it, too


A4 = {"width": 718, "height": 1047}  # inside of the margins
CUT = """() => {
    const boxes = [...document.querySelectorAll("section:not([hidden]) :is(.box, .strips, .plane, .card, .slider)")];
    return boxes.filter((one) => one.checkVisibility()).filter((one) => {
        const { right } = one.getBoundingClientRect();
        return right > innerWidth || (one.matches(".card, .strips") && one.scrollWidth > one.clientWidth + 1);
    }).map((one) => one.className);
}"""


def test_on_paper_nothing_is_cut_off(open_page: Open) -> None:
    page = open_page("#theme=dark", viewport=A4)
    page.emulate_media(media="print")
    for part in PARTS:
        go_to(page, f"#part={part}&theme=dark")
        assert page.evaluate(CUT) == [], part
        assert page.evaluate("document.documentElement.scrollWidth") <= A4["width"], part
    go_to(page, "#part=padding&theme=dark")
    tables = page.locator(".card table").evaluate_all(
        "(all) => all.map((one) => one.offsetWidth - one.closest('.box').clientWidth)"
    )
    assert max(tables) <= 0
    style = "(one) => [getComputedStyle(one).printColorAdjust, getComputedStyle(one).backgroundColor]"
    assert page.locator(".share span").first.evaluate(style) == ["exact", "rgb(11, 92, 173)"]  # in light colours


ROOTS = """() => [...document.querySelectorAll("section:not([hidden]) .root")].map((root) => {
    const [sign, , inside] = root.children;
    const [own, its] = [root, inside].map((one) => one.getBoundingClientRect());
    return {
        sign: sign.textContent, strokes: getComputedStyle(root).backgroundImage.split("linear-gradient").length - 1,
        left: its.left - own.left, above: its.top - own.top, below: own.bottom - its.bottom, high: own.height,
    };
})"""


def test_a_root_is_as_high_as_what_is_under_it(open_page: Open) -> None:
    page = open_page("#part=table")
    roots = page.evaluate(ROOTS)
    assert len(roots) >= 3
    for root in roots:
        assert (root["sign"], root["strokes"]) == ("√", 4)
        assert root["left"] > 8  # room for the sign
        assert 1 < root["above"] < root["high"] / 2
        assert -1 < root["below"] < 4


def test_batch_and_layer_norm_stand_side_by_side(open_page: Open) -> None:
    page = open_page("#part=table", viewport={"width": 1366, "height": 768})
    batch, layer = (page.locator(f".beside [data-norm={name}]").bounding_box() for name in ("batch", "layer"))
    assert batch["y"] == layer["y"]
    assert batch["x"] + batch["width"] < layer["x"]


def test_few_columns_have_their_dots_at_once(open_page: Open) -> None:
    page = open_page("#part=table", viewport=PHONE)
    assert page.locator(".strips svg").count() == 6


def test_on_paper_every_column_has_its_dots(open_page: Open, tmp_path: Path) -> None:
    page = open_page("#x=" + ";".join(",".join(str(i * j % 7) for j in range(30)) for i in range(24)))
    assert page.locator(".strips svg").count() < 60
    page.pdf(path=tmp_path / "page.pdf")
    assert page.locator(".strips svg").count() == 60
    page.emulate_media(media="print")
    cut = page.locator(".table-part :is(.strips, .sheet .box)").evaluate_all(
        "(all) => all.filter((one) => one.scrollHeight > one.clientHeight + 1).length"
    )
    page.emulate_media(media="screen")
    assert cut == 0
