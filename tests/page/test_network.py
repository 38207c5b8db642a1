"""The page's network: its numbers are those of `truenorm explain --example network`, under node and in a browser."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import DESKTOP, PHONE, Open, flushed, go_to, node, settle, violations
from numpy.testing import assert_allclose

from truenorm.cli.explain_network import explain_training_step

HERE = Path(__file__).parent
SMALL = "anna,emma,ian,mia,nina"
NOTES = "betty,daniel,emma,felix,grace,hugo,jack,louis,max,noah,pam,quinn,sophia,victor,wendy,zoe"
SIZES: dict[str, dict[str, Any]] = {"small": {}, "notes": {"hidden": 100, "batch": 32}}


def check_steps(found: dict[str, Any], words: str, size: str, seed: int, lr: float) -> None:
    """Names, formulas, axes, shapes and labels are Python's; numbers are too, to 1e-12 of the largest."""
    wanted = explain_training_step({"words": words, "seed": seed, "lr": lr, **SIZES[size]})
    assert [step["name"] for step in found["steps"]] == [step.name for step in wanted.steps]
    for got, want in zip(found["steps"], wanted.steps, strict=True):
        assert (got["part"], got["formula"], got["axes"]) == (want.part, want.formula, list(want.axes))
        values = np.array(got["values"], float).reshape(want.values.shape)
        # What cancels to 0 but for rounding is compared on the scale of what cancels.
        cancelled = {"db1": wanted["dH0"], "new b1": wanted["dH0"], "dμ (through σ²)": wanted["dμ"]}
        scale = cancelled.get(want.name, want.values)
        assert_allclose(values, want.values, rtol=0, atol=1e-12 * np.abs(scale).max(), err_msg=want.name)
    assert_allclose([found["loss"], found["loss_after"]], [wanted.loss, wanted.loss_after], rtol=1e-12)
    assert found["labels"] == {axis: list(names) for axis, names in wanted.labels.items()}
    assert len(found["checks"]) == 15
    assert max(found["checks"].values()) < 1e-9


CASES = [(SMALL, "small", 0, 0.1), ("ab,ba,ça", "small", 7, 3.0), (NOTES, "notes", 1, 0.1)]


@pytest.mark.parametrize(("words", "size", "seed", "lr"), CASES)
def test_every_step_is_that_of_python_under_node(words: str, size: str, seed: int, lr: float) -> None:
    options = [json.dumps(words.split(",")), size, str(seed), str(lr)]
    made = subprocess.run([node(), str(HERE / "network_steps.mjs"), *options], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    check_steps(json.loads(made.stdout), words, size, seed, lr)


IN_BROWSER = """async ([words, size, seed, learningRate]) => {
    const { explainNetwork } = await import("#maths/network_explanation.js");
    const { startNetwork } = await import("#network/model.js");
    const { network, x, targets, characters } = startNetwork(words, size, seed);
    const found = explainNetwork(network, x, targets, { learningRate, characters });
    const checks = found.steps.map(({ name, part }) => [name, part === "backward" ? found.check(name, 0) : null]);
    return {
        steps: found.steps.map((step) => ({ ...step, values: Array.from(step.values) })), loss: found.loss,
        checks: Object.fromEntries(checks.filter(([, check]) => check).map(([name, check]) => [name, check.largest])),
        loss_after: found.lossAfter, labels: found.labels,
    };
}"""
PANEL = "#panel-network"


def test_every_step_is_that_of_python_in_the_browser(open_page: Open) -> None:
    page = open_page("#part=network")
    for words, size, seed, lr in CASES[:2]:
        check_steps(page.evaluate(IN_BROWSER, [words.split(","), size, seed, lr]), words, size, seed, lr)
    wanted = explain_training_step({})
    said = f"Loss {wanted.loss:.6f} after 0 steps, {wanted.loss_after:.6f} after one more on the same batch."
    assert page.locator(".network-descent .said").inner_text() == said
    page.get_by_role("button", name="Take a step").click()
    settle(page)
    assert f"Loss {wanted.loss_after:.6f} after 1 step," in page.locator(".network-descent .said").inner_text()
    assert page.locator(".network-graph .node .number").last.inner_text() == f"{wanted.loss_after:.4g}"


WALK = """async () => {
    const next = document.querySelector(".network-steps .next");
    const shown = [];
    for (;;) {
        const card = document.querySelector(".network-card.primary");
        shown.push({
            words: document.querySelector(".network-words").innerText, gradient: card.matches(".gradient"),
            cells: card.querySelectorAll("td").length, check: card.querySelector(".network-check")?.innerText ?? "",
            numbers: card.querySelector(".formula-pieces").textContent.replaceAll("\u2212", "-").replace(/\\s/g, ""),
        });
        if (next.hasAttribute("aria-disabled")) return shown;
        next.click();
        await new Promise((done) => setTimeout(done));
    }
}"""


def test_what_rounding_left_is_shown_as_0(open_page: Open) -> None:
    page = open_page("#part=network&network.step=db1")
    texts = page.locator(".network-card.gradient td").all_inner_texts()
    assert len(texts) == 4
    assert set(texts) <= {"≈ 0", "0"}
    go_to(page, "#part=network&network.step=dW1")
    assert "≈ 0" not in page.locator(".network-card.gradient td").all_inner_texts()


def test_every_step_shows_its_numbers_and_agrees_with_finite_differences(open_page: Open) -> None:
    page = open_page("#part=network&network.cell=3,2")
    wanted = [step for step in explain_training_step({}).steps if step.part != "update"]
    for shown, step in zip(page.evaluate(WALK), wanted, strict=True):
        assert f"{step.name} = {step.formula.replace('1e-05', '1×10⁻⁵')}" in shown["words"]
        assert shown["gradient"] == (step.part == "backward")
        assert shown["cells"] == step.values.size
        table = np.atleast_2d(step.values)
        value = float(table[min(2, table.shape[0] - 1), min(1, table.shape[1] - 1)])
        if abs(value) >= 1e-4:  # smaller ones are written as powers of 10
            assert shown["numbers"].split("=")[-1] == f"{float(f'{value:.4g}'):g}", step.name
        assert ("\u2713 All" in shown["check"]) == (step.check is not None), step.name


def test_keyboard_alone(open_page: Open) -> None:
    page = open_page("#part=network")
    page.locator(f"{PANEL} input[type=radio]:checked").first.focus()
    page.keyboard.press("Tab")  # Back
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # Next
    page.keyboard.press("ArrowRight")
    settle(page)
    assert "network.step=Y" in flushed(page)
    page.keyboard.press("Tab")  # to the gradients
    page.keyboard.press("Enter")
    settle(page)
    assert "network.step=dlogits" in flushed(page)
    page.keyboard.press("Tab")  # the graph: one stop, at the chosen node
    assert page.evaluate("document.activeElement.innerText").strip() == "logits"
    page.keyboard.press("ArrowLeft")
    settle(page)
    assert page.evaluate("document.activeElement.innerText").strip() == "b2"
    assert "network.step=db2" in flushed(page)
    page.keyboard.press("Tab")  # the learning rate
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    settle(page)
    assert "network.path=1x0.1" in flushed(page)
    page.locator(".network-card.gradient td[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    settle(page)
    assert "network.cell=1,2" in flushed(page)
    go_to(page, "#part=network&network.size=notes&network.step=HN")
    page.locator(".network-card.value .plot").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    settle(page)
    assert "network.cell=2,2" in flushed(page)
    assert "HN[" in page.locator(".network-card.value .plot").get_attribute("aria-label")


def test_a_link_reproduces_the_view(open_page: Open) -> None:
    page = open_page("#part=network")
    page.get_by_label("Words to learn from").fill("otto, anna")
    page.get_by_label("Seed of the random numbers").fill("12")
    page.locator(PANEL).get_by_label("Learning rate").fill("0.5")
    page.get_by_role("button", name="Take 10").click()
    page.locator(PANEL).get_by_label("Learning rate").fill("2")
    page.get_by_role("button", name="Take a step").click()
    page.locator(".network-graph .node", has_text="HN").click()
    page.get_by_label("w\u2081", exact=True).fill("-3")
    page.get_by_label("Layer: a mean for each row").check()
    settle(page)
    fragment, numbers = flushed(page), page.locator(PANEL).inner_text()
    assert "network.path=10x0.5,1x2" in fragment
    again = open_page(fragment)
    assert again.locator(PANEL).inner_text() == numbers
    assert again.get_by_label("Words to learn from").input_value() == "otto, anna"
    assert "10 characters" not in numbers
    assert "5 examples of 3 characters, 5 characters with 2 numbers each" in numbers


def test_hostile_states_are_refused_in_words(open_page: Open) -> None:
    page = open_page("#part=network")
    for state in (
        "step=new%20C",
        "cell=0,1",
        "cell=9e9,1",
        "words=an3a",
        "words=_",
        "words=" + "a" * 25,
        "words=" + ",".join(["ab"] * 61),
        "seed=-1",
        "seed=1e99",
        "lr=1e9",
        "lr=NaN",
        "path=2000x0.1",
        "path=1x1e9",
        "path=-1x1",
        "layer=1,2",
        "norm=rms",
        "z=6,1",
        "size=huge",
    ):
        go_to(page, f"#part=network&network.{state}")
        assert f"network.{state.split('=')[0]}=" in page.locator("#notice").inner_text(), state
        assert "Loss 1.784336 after 0 steps" in page.locator(".network-descent .said").inner_text()
    go_to(page, "#part=network&network.cell=9999,9999&network.step=logits&network.path=999x1000")
    assert page.locator("#notice").is_hidden()
    assert page.locator(".network-card.value .chosen").count() == 1
    assert "NaN" not in page.locator(PANEL).inner_text()


def test_bad_input_is_answered_where_it_happened(open_page: Open) -> None:
    page = open_page("#part=network")
    before = page.locator(".network-main").inner_text()
    words = page.get_by_label("Words to learn from")
    for text, answer in (
        ("anna, b3n", "\u201cb3n\u201d has an unknown character, \u201c3\u201d."),
        ("an.na", "has an unknown character, \u201c.\u201d."),
        ("  , ", "There is no word here."),
        ("", "There is no word here."),
        ("a" * 25, "has more than 24 characters."),
    ):
        words.fill(text)
        settle(page)
        problem = page.locator(".network-data .problem").first
        assert answer in problem.inner_text()
        assert "keeps the words from before" in problem.inner_text()
        assert words.input_value() == text
    rate = page.locator(PANEL).get_by_label("Learning rate")
    for text in ("1e9", "NaN", "0", "-1", ""):
        rate.fill(text)
        settle(page)
        said = page.locator(".network-descent .problem").inner_text()
        assert said.startswith("A learning rate is a number from")
        assert said.endswith("0.1 stays in use.")
        assert rate.input_value() == text
    seed = page.get_by_label("Seed of the random numbers")
    seed.fill("1.5")
    assert "A seed is a whole number" in page.locator(".network-data .problem").last.inner_text()
    assert page.locator(".network-main").inner_text() == before
    words.fill("b3n")
    seed.fill("3")
    settle(page)
    assert page.locator(".network-main").inner_text() != before
    assert words.input_value() == "b3n"
    page.get_by_role("button", name="Reset words, seed and learning rate").click()
    settle(page)
    assert words.input_value() == SMALL.replace(",", ", ")
    assert page.locator(".network-data .problem").first.is_hidden()
    assert page.locator(".network-main").inner_text() == before
    weight = page.get_by_label("w\u2081", exact=True)
    weight.fill("NaN")
    settle(page)
    said = page.locator(".network-layer .problem").inner_text()
    assert said == "w\u2081 is not a number: \u201cNaN\u201d. It counts as 0 until that changes."
    assert weight.input_value() == "NaN"
    for large in ("1e308", "1e999"):
        weight.fill(large)
        settle(page)
        said = page.locator(".network-layer .problem").inner_text()
        assert said == f"w\u2081 is too large to compute with: \u201c{large}\u201d. It counts as 0 until that changes."
        assert "NaN" not in page.locator(".network-layer").inner_text()
    weight.fill("-1e100")
    settle(page)
    assert page.locator(".network-layer .problem").is_hidden()
    assert "NaN" not in page.locator(".network-layer").inner_text()
    weight.fill("1")
    settle(page)
    assert page.locator(".network-layer .problem").is_hidden()
    assert "Rows with the notes\u2019 z: 1, 2, 4." in page.locator(".network-layer .note").inner_text()


DRAWN = """() => {
    const box = document.querySelector(".network-graph");
    const nodes = [...box.querySelectorAll(".node")];
    const cuts = (one) => one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight;
    const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
    const frames = nodes.map((one) => one.getBoundingClientRect());
    return {
        scrolls: box.scrollWidth > box.clientWidth,
        least: Math.min(...frames.flatMap(({ width, height }) => [width, height])),
        cut: nodes.filter(cuts).map((one) => one.innerText),
        meet: frames.filter((a, i) => frames.some((b, k) => k > i && meet(a, b))).length,
        bottom: Math.max(...frames.map(({ bottom }) => bottom)),
        labels: box.querySelectorAll("svg text").length, shapes: nodes.map((one) => one.innerText.split(/\\s+/)),
    };
}"""


@pytest.mark.parametrize("size", ["small", "notes"])
def test_on_a_phone_the_whole_graph_is_in_sight(open_page: Open, size: str) -> None:
    page = open_page(f"#part=network&network.size={size}&network.step=dC", viewport=PHONE)
    drawn = page.evaluate(DRAWN)
    assert (drawn["scrolls"], drawn["cut"], drawn["meet"], drawn["labels"]) == (False, [], 0, 0)
    assert drawn["least"] >= 24  # large enough for a finger
    assert drawn["bottom"] < PHONE["height"]
    assert ["W2", "4×6" if size == "small" else "100×27"] in drawn["shapes"]
    page.set_viewport_size(DESKTOP)
    page.wait_for_function("() => document.querySelectorAll('.network-graph svg text').length > 10")
    assert ["W2"] in page.evaluate(DRAWN)["shapes"]


WIDTHS = (360, 768, 769, 1024, 1183, 1184, 1600)


def test_the_graph_fits_every_width(open_page: Open) -> None:
    page = open_page("#part=network&network.step=dC", viewport=PHONE)
    for size in ("small", "notes"):
        go_to(page, f"#part=network&network.size={size}&network.step=dC")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 768})
            settle(page)
            drawn = page.evaluate(DRAWN)
            assert (drawn["scrolls"], drawn["cut"], drawn["meet"]) == (False, [], 0), (size, width)
            assert drawn["least"] >= 24, (size, width)
            shapes = [one for one in drawn["shapes"] if len(one) > 1]
            assert (drawn["labels"] > 10) == (width >= 1184) == (len(shapes) < 3), (size, width)


# test_browser.py looks at the part as it opens, in these two views.
LARGE, WRONG = "size=notes&network.step=dW2", "layer=a,1,1,1,1,1,1,1,1&network.lr=1000&network.step=dC"
VIEWS = [
    pytest.param("light", DESKTOP, [WRONG], id="desktop-light", marks=pytest.mark.slow),
    pytest.param("dark", PHONE, [LARGE], id="phone-dark", marks=pytest.mark.slow),
    pytest.param("dark", DESKTOP, [LARGE, WRONG], id="desktop-dark", marks=pytest.mark.slow),
    pytest.param("light", PHONE, [LARGE, WRONG], id="phone-light", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("scheme", "viewport", "states"), VIEWS)
def test_axe_finds_nothing(open_page: Open, scheme: str, viewport: dict[str, int], states: list[str]) -> None:
    page = open_page("#part=network", color_scheme=scheme, viewport=viewport)
    for state in states:
        go_to(page, f"#part=network&network.{state}")
        assert violations(page) == "", state
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], state
