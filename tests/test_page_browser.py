"""The page in a real browser: Debian's chromium, from a file, without a network.

Every test fails on an error in the console and on any request but the page itself.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from truenorm import page as page_source

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[dev]'")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")

HERE = Path(__file__).parent
CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE, DESKTOP = {"width": 360, "height": 740}, {"width": 1280, "height": 900}
PARTS = ("table", "backwards", "sentences", "training")

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def chromium() -> str:
    """The browser, installed where that may be; one worker at a time."""
    with open(Path(tempfile.gettempdir()) / "truenorm-chromium.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not Path(CHROMIUM).exists() and os.geteuid() == 0 and shutil.which("apt-get"):
            for command in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
                subprocess.run(["apt-get", "-qq", *command], capture_output=True)
    if not Path(CHROMIUM).exists():
        pytest.skip(f"needs {CHROMIUM}: apt-get install chromium")
    return CHROMIUM


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_source.write(tmp_path_factory.mktemp("page") / "truenorm.html").as_uri()


@pytest.fixture
def open_page(browser: Any, address: str) -> Iterator[Open]:
    """Opens the page with a fragment; afterwards nothing may have gone wrong in any that was opened."""
    contexts, wrong = [], []

    def open_page(fragment: str = "", **options: Any) -> Any:
        settings = {"viewport": DESKTOP, "offline": True, "reduced_motion": "reduce"} | options
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(5000)
        page.on("console", lambda one: wrong.append(one.text) if one.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: wrong.append(request.url) if request.url.split("#")[0] != address else None)
        page.goto(address + fragment)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not wrong


def shown_part(page: Any) -> str:
    """The part whose panel is in sight; its tab must say the same."""
    (panel,) = [one for one in PARTS if page.locator(f"#panel-{one}").is_visible()]
    assert page.locator("[role=tab][aria-selected=true]").get_attribute("id") == f"tab-{panel}"
    return panel


def flushed(page: Any) -> str:
    """The fragment, once it is written."""
    page.wait_for_timeout(400)
    return str(page.evaluate("location.hash"))


def test_the_page_opens_without_an_error(open_page: Open) -> None:
    page = open_page()
    assert page.title() == "Normalization, number by number"
    assert shown_part(page) == "table"
    assert page.locator("#notice").is_hidden()
    assert page.evaluate("location.hash") == ""


def test_tabs_work_by_keyboard_alone(open_page: Open) -> None:
    page = open_page()
    page.locator("#theme").focus()
    page.keyboard.press("Tab")
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "Home", "End"):
        page.keyboard.press(key)
        seen.append(shown_part(page))
        assert page.evaluate("document.activeElement.id") == f"tab-{seen[-1]}"
    assert seen == ["backwards", "sentences", "training", "table", "training", "table", "training"]


def test_a_link_reproduces_the_view(open_page: Open) -> None:
    page = open_page()
    page.get_by_label("Layer").check()
    page.locator("#theme").select_option("dark")
    numbers = page.locator("#panel-table").inner_text()
    page.locator("#tab-table").click()
    fragment = flushed(page)
    assert fragment == "#theme=dark&norm=layer"
    again = open_page(fragment)
    assert again.get_by_label("Layer").is_checked()
    assert again.evaluate("document.documentElement.dataset.theme") == "dark"
    assert again.locator("#panel-table").inner_text() == numbers
    again.evaluate("location.hash = '#part=training'")
    again.wait_for_function("!document.getElementById('panel-training').hidden")
    assert again.locator("#theme").input_value() == "auto"


def test_nonsense_in_the_address_is_said_politely(open_page: Open) -> None:
    page = open_page("#norm=softmax&x=1,2;3&part=nowhere&eps=%E0%A4%A")
    assert shown_part(page) == "table"
    said = page.locator("#notice").inner_text()
    assert said.startswith("Left out of the address, as it makes no sense here: part=nowhere, norm=softmax")
    page.evaluate("location.hash = '#norm=layer'")
    page.wait_for_function("document.getElementById('notice').hidden")


def test_golden_vectors_agree_in_the_browser(open_page: Open) -> None:
    compare = (HERE / "page" / "golden.mjs").read_text("utf-8").replace("export function", "function")
    golden = json.loads((HERE / "page" / "golden.json").read_text("utf-8"))
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing(open_page: Open, scheme: str, viewport: dict[str, int]) -> None:
    page = open_page(color_scheme=scheme, viewport=viewport)
    for part in PARTS:
        page.locator(f"#tab-{part}").click()
        results = axe.Axe().run(page)
        assert results.violations_count == 0, f"{part}: {results.generate_report()}"
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], f"{part} is too wide"
