"""The page's recorded runs: that the lab makes them so, and that the page in a real browser shows what was recorded."""

from __future__ import annotations

import json
import shlex
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest
from browser import DESKTOP, PHONE, Open, flushed, go_to, stop_clock, violations
from numpy.testing import assert_allclose
from tools import recordings

from truenorm import page as page_source
from truenorm.cli import main

FILE = json.loads((Path(page_source.__file__).parent / "runs.json").read_text("utf-8"))
RUNS = {(run["norm"], run["rate"]): run for run in FILE["runs"]}
MOMENTS = FILE["moments"]
HERE = "#part=training"
BEAT = 450  # milliseconds that a moment is shown: training/losses.js
INSIDE = ("std", "saturated", "silent", "slope", "into", "out")


# ---- the recording ----


@pytest.mark.parametrize(("norm", "rate", "until"), [("none", 0.1, 100), ("batch", 0.1, 100), ("batch", 3.0, 3)])
def test_the_lab_records_the_same_again(norm: str, rate: float, until: int) -> None:
    again, filed = recordings.record(norm, rate, until=until), RUNS[norm, rate]
    assert_allclose(again["loss"], filed["loss"][: len(again["loss"])], rtol=2e-3)
    assert len(again["loss"]) == sum(step <= until for step in FILE["points"])
    for name in INSIDE:
        # A rounding may carry a number over the edge of a bin, or of what counts as saturated.
        part = filed[name][: len(again[name])]
        assert_allclose(again[name], part, rtol=2e-3, atol=2 if name in ("into", "out") else 2e-3, err_msg=name)
    assert len(again["std"]) == sum(step <= until for step in MOMENTS)


def test_another_seed_and_another_rate_record_something_else() -> None:
    first = recordings.record("none", 0.1, until=5)
    assert recordings.record("none", 0.1, seed=1, until=5)["loss"] != first["loss"]
    assert recordings.record("none", 1.0, until=5)["loss"][1:] != first["loss"][1:]


def test_the_file_is_small_and_whole() -> None:
    text = (Path(page_source.__file__).parent / "runs.json").read_text("utf-8")
    assert len(text.encode()) < 60_000
    assert text == recordings.as_text(FILE["runs"])
    assert set(RUNS) == {(norm, rate) for norm in recordings.NORMS for rate in recordings.RATES}
    assert set(MOMENTS) <= set(FILE["points"])
    for run in FILE["runs"]:
        assert len(run["loss"]) == len(FILE["points"])
        assert len(run["held_out"]) == FILE["seeds"]
        for name in INSIDE:
            assert len(run[name]) == len(MOMENTS), name
        for bins in (*run["into"], *run["out"]):
            assert sum(bins) == FILE["parts"]


def test_both_runs_of_a_pair_start_alike() -> None:
    for rate in recordings.RATES:
        assert abs(RUNS["none", rate]["loss"][0] - RUNS["batch", rate]["loss"][0]) < 0.05
        assert RUNS["none", rate]["into"][0] == RUNS["none", 0.1]["into"][0]


def test_histograms_add_up_and_take_in_what_lies_beyond() -> None:
    import numpy as np

    edges = np.array([-np.inf, -1.0, 0.0, 1.0, np.inf])
    assert recordings.histogram(np.array([-9.0, -0.5, 0.0, 0.5, 1.0, np.inf, np.nan]), edges) == [29, 28, 57, 86]
    assert recordings.rounded(float("nan")) is None
    assert recordings.rounded(0.00123456) == 0.001235


# ---- the page ----


SNAPSHOT = """() => {
    const texts = (selector) => [...document.querySelectorAll(`.training ${selector}`)].map((one) => one.textContent);
    return {
        step: Number(texts(".chart output")[0]),
        heading: texts(".hidden-layer h3")[0],
        sentence: texts(".moment")[0],
        losses: texts(".switches td b"),
        facts: texts(".facts tbody td"),
        bars: [...document.querySelectorAll(".training .histogram")].map(
            (one) => [...one.querySelectorAll(".bar")].map((bar) => Number(bar.dataset.count))),
    };
}"""


def slider(page: Any) -> Any:
    return page.locator(".training").get_by_role("slider", name="step")


def in_sight(element: Any) -> dict[str, float]:
    """Where an element is, once a mouse can reach all of it."""
    element.evaluate("(one) => one.scrollIntoView({ block: 'center' })")
    return dict(element.bounding_box())


def step(page: Any) -> int:
    return int(page.evaluate(SNAPSHOT)["step"])


def button(page: Any) -> Any:
    return page.locator(".training .play")


def wait_for(page: Any, selector: str, text: str) -> None:
    """Until this is what it says."""
    page.wait_for_function(
        "([selector, text]) => document.querySelector(selector).textContent === text", arg=[selector, text]
    )


def percent(share: float) -> str:
    if 0 < share < 0.0005:
        return "under 0.1%"
    if 0.9995 <= share < 1:
        return "over 99.9%"
    return f"{float(Decimal(100 * share).quantize(Decimal('0.1'), ROUND_HALF_UP)):g}%"


def number(value: float) -> str:
    return f"{float(f'{value:.4g}'):.10g}"


def check_shown(page: Any, rate: float, at: int) -> None:
    """Everything that depends on the moment is of this one, and is what was recorded."""
    moment, point = MOMENTS.index(at), FILE["points"].index(at)
    pair = [RUNS[norm, rate] for norm in ("none", "batch")]
    without, with_norm = (percent(run["saturated"][moment]) for run in pair)
    rows = [[percent(run[name][moment]) for run in pair] for name in ("saturated", "silent", "slope")]
    rows.insert(2, [number(run["std"][moment]) for run in pair])
    assert page.evaluate(SNAPSHOT) == {
        "step": at,
        "heading": f"Inside the hidden layer: learning rate {rate:g}, step {at}",
        "sentence": f"Saturated: {without} of the outputs without batch norm, {with_norm} with it.",
        "losses": [number(run["loss"][point]) for run in FILE["runs"]],
        "facts": [text for row in rows for text in row],
        "bars": [run[name][moment] for name in ("into", "out") for run in pair],
    }


def test_at_first_the_end_of_the_telling_pair_is_shown(open_page: Open) -> None:
    page = open_page(HERE)
    check_shown(page, 3.0, MOMENTS[-1])
    drawn = page.locator(".training .switches input:checked").evaluate_all(
        "(all) => all.map((one) => one.closest('label').textContent)"
    )
    assert drawn == [f"learning rate 3 {norm} batch norm" for norm in ("without", "with")]
    assert page.locator(".training .chart .series").count() == 3  # and blind guessing
    held_out = page.locator(".training .ends tbody td").all_inner_texts()
    for text, run in zip(held_out, FILE["runs"], strict=True):
        losses = run["held_out"]
        mean, least, most = (number(one) for one in (sum(losses) / len(losses), min(losses), max(losses)))
        assert text == f"{mean} ({least} to {most})"


@pytest.mark.parametrize(
    "rate", [pytest.param(rate, marks=[] if rate in (0.1, 10) else pytest.mark.slow) for rate in recordings.RATES]
)
def test_every_moment_shows_what_was_recorded(open_page: Open, rate: float) -> None:
    page = open_page(HERE)
    page.locator(".training").get_by_label(f"{rate:g}", exact=True).check()
    slider(page).focus()
    page.keyboard.press("Home")
    for at in MOMENTS:
        check_shown(page, rate, at)
        page.keyboard.press("ArrowRight")
    assert slider(page).get_attribute("aria-valuetext") == f"step {MOMENTS[-1]}"


def test_bars_are_as_high_as_their_shares(open_page: Open) -> None:
    page = open_page(HERE + "&training.lr=0.1")
    for place in range(4):
        sizes = (
            page.locator(".training .histogram")
            .nth(place)
            .locator(".bar")
            .evaluate_all("(all) => all.map((one) => [Number(one.dataset.count), one.height.baseVal.value])")
        )
        tallest = max(sizes)
        for count, height in sizes:
            assert height == pytest.approx(max(tallest[1] * count / tallest[0], 1 if count else 0), abs=1e-3)
    assert page.locator(".training .bar.beyond").count() == 4


def test_a_mouse_on_the_chart_moves_through_time(open_page: Open) -> None:
    page = open_page(HERE)
    box = in_sight(page.locator(".training .chart .canvas"))
    left, right, middle = box["x"] + 56, box["x"] + box["width"] - 14, box["y"] + box["height"] / 2
    page.mouse.move(left + 1, middle)
    page.mouse.down()
    check_shown(page, 3.0, 0)
    seen = []
    for part in (0.2, 0.4, 0.6, 0.8, 1.0, 1.2):
        page.mouse.move(left + part * (right - left), middle)
        seen.append(step(page))
        check_shown(page, 3.0, seen[-1])
    page.mouse.up()
    assert seen == sorted(seen)
    assert len(set(seen)) == 5  # what lies beyond the chart is its end
    assert seen[-1] == MOMENTS[-1]
    page.mouse.move(left, middle)
    assert step(page) == MOMENTS[-1]  # no button, no move


@pytest.mark.parametrize("axis", ["early", "even"])
def test_a_click_where_a_moment_is_drawn_goes_to_it(open_page: Open, axis: str) -> None:
    page = open_page(f"{HERE}&training.steps={axis}")
    cursor, places = page.locator(".training .chart .cursor"), {}
    slider(page).focus()
    for at in reversed(MOMENTS):
        places[at] = cursor.evaluate("(line) => line.getBoundingClientRect().x")
        page.keyboard.press("ArrowLeft")
    middle = in_sight(page.locator(".training .chart .canvas"))["y"] + 150
    for at in (20, 400, 1000, 3000) if axis == "early" else (400, 1000, 3000):
        page.mouse.click(places[at], middle)
        assert step(page) == at
    assert places[4000] - places[3000] == pytest.approx(places[3000] - places[2000], rel=1e-3) or axis == "early"
    assert places[1] - places[0] > 20 or axis == "even"


def ticked(page: Any) -> list[str]:
    return [
        text.removeprefix("learning rate ").removesuffix(" batch norm")
        for text in page.locator(".training .switches input:checked + svg + span").all_inner_texts()
    ]


@pytest.mark.slow
def test_a_rate_brings_its_runs_and_switches_take_them_away(open_page: Open) -> None:
    page = open_page(HERE)
    rate = page.locator(".training .controls").get_by_label
    lines = page.locator(".training .chart .series")
    rate("10", exact=True).check()
    assert (ticked(page), lines.count()) == (["10 without", "10 with"], 3)
    assert flushed(page) == "#part=training&training.lr=10"
    label = page.locator(".training .chart svg[role=img]").get_attribute("aria-label")
    assert "learning rate 10 with batch norm 79.79" in label
    page.get_by_role("checkbox", name="learning rate 10 with batch norm").uncheck()
    page.get_by_role("checkbox", name="learning rate 0.1 without batch norm").check()
    rate("1", exact=True).check()  # what was ticked by hand stays
    assert ticked(page) == ["0.1 without", "1 without", "1 with", "10 without"]
    while (boxes := page.locator(".training .switches input:checked")).count():
        boxes.first.focus()
        page.keyboard.press("Space")
    assert lines.count() == 1
    assert flushed(page) == "#part=training&training.lr=1&training.runs="
    assert open_page(flushed(page)).locator(".training .chart .series").count() == 1
    assert ticked(open_page(f"{HERE}&training.lr=0.01")) == ["0.01 without", "0.01 with"]


def test_what_is_said_of_silent_units_was_recorded(open_page: Open) -> None:
    page = open_page(HERE)
    for rate in recordings.RATES:
        go_to(page, f"{HERE}&training.lr={rate:g}")
        without, with_norm = (percent(RUNS[norm, rate]["silent"][-1]) for norm in ("none", "batch"))
        text = (
            f"At the end, at learning rate {rate:g}, {without} of the outputs are silent without batch norm, "
            f"and {with_norm} with it."
        )
        assert page.get_by_text(text, exact=True).is_visible()


def test_words_are_explained_where_they_are_first_used(open_page: Open) -> None:
    text = open_page(HERE).locator("#panel-training").inner_text()
    explained = {
        "hidden layer": ": 100 units, each of which adds up what it gets",
        "tanh": ", a curve from −1 to 1",
        "held out": ": kept out of training",
        "standard deviation": " of what goes in",
    }
    for word, meaning in explained.items():
        assert text.lower().split(word, 1)[1].startswith(meaning), word


def test_switches_are_as_large_as_a_finger(open_page: Open) -> None:
    page = open_page(HERE, viewport=PHONE)
    for label in page.locator(".training .switches td label").all():
        box = label.bounding_box()
        assert min(box["width"], box["height"]) >= 44


def test_a_link_reproduces_the_view(open_page: Open) -> None:
    page = open_page(HERE)
    panel = page.locator(".training")  # live training: test_live.py
    panel.get_by_label("0.01", exact=True).check()
    panel.locator("fieldset", has_text="Loss axis").get_by_label("even").check()
    panel.locator("fieldset", has_text="Step axis").get_by_label("even").check()
    page.get_by_role("checkbox", name="learning rate 3 without batch norm").check()
    slider(page).focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    fragment = flushed(page)
    assert "training.lr=0.01" in fragment
    assert f"training.step={MOMENTS[-4]}" in fragment
    again = open_page(fragment)
    check_shown(again, 0.01, MOMENTS[-4])
    assert again.locator(".training").inner_text() == panel.inner_text()
    for one in ("path", "text"):
        drawing = f".training .chart svg[role=img] {one}"
        shapes = [view.locator(drawing).evaluate_all("(all) => all.map((e) => e.outerHTML)") for view in (page, again)]
        assert len(shapes[0]) > 3
        assert shapes[0] == shapes[1]
    again.evaluate("location.hash = '#part=training&training.step=7&training.lr=1'")
    wait_for(again, ".training .chart output", "5")
    check_shown(again, 1.0, 5)  # the nearest moment
    assert again.locator("#notice").is_hidden()


NONSENSE = [
    "lr=0.2",
    "lr=",
    "step=-1",
    "step=4001",
    "step=soon",
    "scale=cubic",
    "steps=odd",
    "runs=none-3,none-4",
    "speed=9",
]


def test_nonsense_in_the_address_is_left_out_politely(open_page: Open) -> None:
    page = open_page(f"{HERE}&training.{NONSENSE[0]}")
    for nonsense in NONSENSE:
        go_to(page, f"{HERE}&training.{nonsense}")
        said = page.locator("#notice").inner_text()
        assert said == f"Ignored in the address, as it cannot be read: training.{nonsense.rstrip('=')}."
        check_shown(page, 3.0, MOMENTS[-1])


def test_play_walks_through_the_moments_and_pauses(open_page: Open) -> None:
    page = open_page(HERE, reduced_motion="no-preference")
    stop_clock(page)
    assert button(page).inner_text() == "Play"
    button(page).click()
    assert step(page) == 0  # from the end to the start
    assert button(page).inner_text() == "Pause"
    for moment in MOMENTS[1:4]:
        page.clock.run_for(BEAT)
        check_shown(page, 3.0, moment)
    button(page).click()
    page.clock.run_for(3 * BEAT)
    assert step(page) == MOMENTS[3]
    assert button(page).inner_text() == "Play"


def test_play_stops_at_the_end_by_hand_and_out_of_sight(open_page: Open) -> None:
    page = open_page(f"{HERE}&training.step={MOMENTS[-3]}", reduced_motion="no-preference")
    stop_clock(page)
    button(page).click()
    page.clock.run_for(3 * BEAT)
    assert button(page).inner_text() == "Play"
    check_shown(page, 3.0, MOMENTS[-1])
    button(page).click()
    assert step(page) == 0
    slider(page).focus()
    page.keyboard.press("End")  # a hand on the slider is in charge
    page.clock.run_for(3 * BEAT)
    assert (step(page), button(page).inner_text()) == (MOMENTS[-1], "Play")
    button(page).click()
    page.locator("#tab-table").click()
    page.clock.run_for(3 * BEAT)
    page.locator("#tab-training").click()
    assert button(page).inner_text() == "Play"
    check_shown(page, 3.0, 0)


def test_without_motion_a_press_is_one_moment(open_page: Open) -> None:
    page = open_page(f"{HERE}&training.step=10", reduced_motion="reduce")
    stop_clock(page)
    assert button(page).inner_text() == "Next moment"
    button(page).focus()
    page.keyboard.press("Enter")
    check_shown(page, 3.0, 20)
    page.clock.run_for(3 * BEAT)
    assert (step(page), button(page).inner_text()) == (20, "Next moment")
    page.emulate_media(reduced_motion="no-preference")
    wait_for(page, ".training .play", "Play")
    button(page).click()
    page.emulate_media(reduced_motion="reduce")  # also stops what plays
    wait_for(page, ".training .play", "Next moment")
    page.clock.run_for(3 * BEAT)
    assert step(page) == 50


@pytest.mark.slow
def test_the_copied_commands_end_where_the_page_says(
    open_page: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = open_page(f"{HERE}&training.lr=0.1", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="two commands").click()
    wait_for(page, "#live", "Copied as two commands.")
    commands = page.evaluate("navigator.clipboard.readText()").splitlines()
    monkeypatch.chdir(tmp_path)
    for command, norm in zip(commands, ("none", "batch"), strict=True):
        program, *arguments = shlex.split(command)
        assert program == "truenorm"
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert not stop.value.code
        result = json.loads((tmp_path / "runs" / f"{norm}-0.1" / "result.json").read_text("utf-8"))
        assert result["held_out"]["loss"] == pytest.approx(RUNS[norm, 0.1]["held_out"][0], abs=0.02)


@pytest.mark.slow  # the quick tests look at every part once: test_browser.py
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing_and_nothing_is_too_wide(open_page: Open, scheme: str, viewport: dict[str, int]) -> None:
    everything = ",".join(f"{norm}-{rate:g}" for norm, rate in RUNS)
    for more in ("", f"&training.lr=10&training.step=1&training.scale=linear&training.runs={everything}"):
        page = open_page(HERE + more, color_scheme=scheme, viewport=viewport)
        assert violations(page) == ""
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


def test_the_page_stays_small() -> None:
    assert len(page_source.assemble().encode()) < 500_000
