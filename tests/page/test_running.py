"""The part "running" in a real browser: batches arrive, and one student is normalized in training and in evaluation."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import DESKTOP, PHONE, Open, flushed, go_to, node, settle, violations
from numpy.testing import assert_allclose
from tools.students import ON_THE_PAGE, students

import truenorm as tn
from truenorm import page as page_source
from truenorm.core.running import Running, torch_convention

HERE = "#part=running"
STREAM = Path(page_source.__file__).parent / "running" / "stream.js"


def values(page: Any) -> dict[str, float]:
    """The legends: what each line of the first chart says, and "σ² ..." of the second."""
    found = {}
    for prefix, chart in zip(("", "σ² "), page.locator(".running figure").all(), strict=True):
        for line in chart.locator(".legend li").all_inner_texts():
            name, value = line.split("\n")
            found[prefix + name] = float(value.replace("–", "nan"))
    return found


def test_running_statistics_are_those_of_the_core() -> None:
    script = (
        f"import {{ arrivals }} from {json.dumps(str(STREAM))};"
        "console.log(JSON.stringify([0.1, 0.01].map((one) => arrivals(8, one))));"
    )
    command = [node(), "--input-type=module", "--eval", script]
    made = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    iq = np.array([row[1] for row in students()[:ON_THE_PAGE]], float)
    for momentum, found in zip((0.1, 0.01), made, strict=True):
        rng, running = np.random.default_rng([8]), Running.start((1,), torch_convention(momentum))
        for batch, state in zip(found["batches"], found["states"][1:], strict=True):
            x = iq[rng.integers(100, size=8)]
            assert batch == x.tolist()
            running = running.update(tn.measure(x[:, None], tn.batch()))
            assert_allclose([state["mean"], state["var"]], [running.mean, running.var], rtol=1e-12)


def test_batches_arrive_by_keyboard_alone(open_page: Open) -> None:
    page = open_page(HERE)
    start = values(page)
    assert start["momentum 0.1"] == 96.43
    assert start["momentum 0.01"] == 32.31
    assert start["all students"] == 98.37
    page.locator("#theme").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Next batch"  # without motion, one at a press
    page.keyboard.press("Enter")
    assert "running.batches=41" in flushed(page)
    later = values(page)
    assert later["momentum 0.1"] == pytest.approx(start["momentum 0.1"] * 0.9 + later["this batch"] * 0.1, abs=0.02)
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert values(page)["momentum 0.1"] == 0
    assert values(page)["σ² momentum 0.1"] == 1
    page.get_by_label("Momentum", exact=True).focus()
    page.keyboard.press("End")
    page.get_by_role("slider", name="batches").first.focus()
    page.keyboard.press("End")
    last = values(page)
    assert last["momentum 1"] == last["this batch"]
    assert last["σ² momentum 1"] == last["σ² this batch"]
    page.get_by_label("Batch size", exact=True).focus()
    page.keyboard.press("Home")
    assert "A batch of one has no variance: " in page.locator(".running .said").inner_text()
    assert values(page)["momentum 1"] == 0
    assert "NaN" not in page.locator("#panel-running").inner_text()


def test_batches_play_and_stop_when_nobody_looks(open_page: Open) -> None:
    page = open_page(f"{HERE}&running.batches=0", reduced_motion="no-preference")
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("() => Number(document.querySelector('.running figure output').textContent) >= 3")
    page.locator("#tab-why").click()
    page.wait_for_function("() => document.querySelector('.running .play').textContent === 'Play'")
    page.locator("#tab-running").click()
    reached = page.locator(".running figure output").first.inner_text()
    page.get_by_role("button", name="One batch").click()
    settle(page)
    assert int(page.locator(".running figure output").first.inner_text()) == int(reached) + 1


def test_one_student_in_training_and_in_evaluation(open_page: Open) -> None:
    page = open_page(HERE)
    rows = page.locator(".running table").first.locator("tr")
    low, high = map(float, re.findall(r"-?[\d.]+", rows.nth(0).locator("td").inner_text().replace("−", "-"))[:2])
    assert low < high - 1  # it depends on the others
    assert len(set(rows.nth(0).locator("circle").evaluate_all("(all) => all.map((one) => one.cx.baseVal.value)"))) > 20
    assert rows.nth(1).locator("math").text_content().endswith("1.854")
    assert rows.nth(1).locator("circle").count() == 1
    page.locator(".running .copy summary").click()
    command = page.locator(".running .copy pre", has_text="printf").inner_text()
    assert command == r"printf '120\n' | truenorm explain - --mean 96.4272 --var 161.606"
    runs = command.replace("truenorm", f"{shlex.quote(sys.executable)} -m truenorm")
    out = subprocess.run(["sh", "-c", runs], capture_output=True, text=True, check=True).stdout
    assert "b0  1.8543" in out  # xhat, as the page has it
    field = page.get_by_label("iq of the student")
    for wrong in ("abc", "", "NaN", "1e999", "1,234"):
        field.fill(wrong)
        assert page.locator(".running .problem").inner_text() == f"iq needs a number such as 120, got “{wrong}”."
        assert rows.count() == 0
    assert field.input_value() == "1,234"
    for large in ("1e308", "-1e101"):
        field.fill(large)
        assert page.locator(".running .problem").inner_text() == f"iq is too large to compute with, got “{large}”."
        assert rows.count() == 0
    field.fill("-1e100")
    assert page.locator(".running .problem").is_hidden()
    assert rows.count() == 3
    assert "NaN" not in page.locator(".running").inner_text()
    field.fill("96,5")
    assert rows.nth(1).locator("math").text_content().endswith("0.005727")


def test_a_shifted_test_set(open_page: Open) -> None:
    page = open_page(HERE)
    rows = page.locator(".running table").last.locator("tr")
    assert "x̂: mean 1.333, deviation 1.063" in rows.nth(0).inner_text()
    assert "μ = 113.4, σ² = 182.5\nx̂: mean 0, deviation 1" in rows.nth(1).inner_text()
    page.get_by_label("All iq shifted by").focus()
    page.keyboard.press("Home")
    assert "μ = 68.37, σ² = 182.5\nx̂: mean 0, deviation 1" in rows.nth(1).inner_text()
    assert "running.shift=-30" in flushed(page)


def test_a_link_reproduces_the_view_and_nonsense_is_refused(open_page: Open) -> None:
    fragment = f"{HERE}&running.batches=77&running.size=4&running.momentum=0.3&running.x=85&running.shift=-7"
    page = open_page(fragment)
    panel = page.locator("#panel-running")
    shown = panel.inner_text()
    assert page.get_by_label("iq of the student").input_value() == "85"
    go_to(page, HERE)
    assert panel.inner_text() != shown
    go_to(page, fragment)
    assert panel.inner_text() == shown
    hostile = "running.batches=1e9&running.size=0&running.momentum=NaN&running.shift=0.5"
    go_to(page, f"{HERE}&{hostile}")
    assert page.locator("#notice").inner_text() == (
        f"Ignored in the address, as it cannot be read: {hostile.replace('&', ', ')}."
    )
    assert values(page)["momentum 0.1"] == 96.43
    for edge in ("running.x=", "running.x=1,2,3", "running.x=%3Cb%3E", "running.size=3&running.momentum=0.123456"):
        go_to(page, f"{HERE}&{edge}")
        assert "NaN" not in panel.inner_html()
    go_to(page, f"{HERE}&running.x={'z' * 201}")
    assert "A cell has at most 200 characters, got 201." in page.locator("#notice").inner_text()


# test_browser.py looks at the part as it opens.
@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "viewport"), [("dark", PHONE), ("light", DESKTOP)])
def test_axe_finds_nothing_and_nothing_is_cut_off(open_page: Open, scheme: str, viewport: dict[str, int]) -> None:
    page = open_page(f"{HERE}&running.x=abc", color_scheme=scheme, viewport=viewport)
    assert violations(page) == ""
    for edge in ("", "&running.x=-1e308", "&running.size=1&running.batches=0", "&running.x=" + "z" * 150):
        go_to(page, HERE + edge)
        assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"], edge
