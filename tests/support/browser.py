"""The page in a real browser, for the tests: Debian's chromium, from a file, without a network.

`open_page`, a fixture that conftest.py hands to all tests, fails a test on any error or warning in the console and on
any request but the page itself.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from truenorm import page as page_source

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
PATIENCE = 60_000  # milliseconds that a condition may take, on a machine that is busy with other work
PHONE, DESKTOP = {"width": 360, "height": 740}, {"width": 1280, "height": 900}
PARTS = ("overview", "why", "table", "padding", "backward", "network", "running", "training")

Open = Callable[..., Any]


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[dev]'")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_source.write(tmp_path_factory.mktemp("page") / "truenorm.html").as_uri()


SETTINGS: dict[str, Any] = {"viewport": DESKTOP, "offline": True, "reduced_motion": "reduce"}


def new_page(browser: Any, address: str, wrong: list[str], settings: dict[str, Any]) -> Any:
    """A page in a context of its own; what goes wrong in it is added to `wrong`."""
    page = browser.new_context(**settings).new_page()
    page.on("console", lambda one: wrong.append(one.text) if one.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if request.url.split("#")[0] != address else None)
    return page


@pytest.fixture(scope="session")
def first_page(browser: Any, address: str) -> tuple[Any, list[str]]:
    """The page that tests open first, one after the other: a new context takes a third of the time of opening one."""
    wrong: list[str] = []
    return new_page(browser, address, wrong, SETTINGS), wrong


@pytest.fixture
def open_page(browser: Any, address: str, first_page: tuple[Any, list[str]]) -> Iterator[Open]:
    """Opens the page with a fragment; afterwards nothing may have gone wrong in any that was opened.

    Pages with options, and all but the first of a test, get a new context.
    """
    page_of_all, wrong = first_page
    wrong.clear()
    opened: list[Any] = []

    def open_page(fragment: str = "", **options: Any) -> Any:
        if opened or options:
            page = new_page(browser, address, wrong, SETTINGS | options)
        else:
            page = page_of_all
            page.goto("about:blank")  # or another fragment would load nothing
            page.mouse.move(0, 0)
        opened.append(page)
        page.set_default_timeout(PATIENCE)
        page.goto(address + fragment)
        return page

    yield open_page
    for page in opened:
        if page is not page_of_all:
            page.context.close()
    assert not wrong


def go_to(page: Any, fragment: str) -> None:
    """Another fragment in an open page, which is ten times as quick as to open it anew."""
    page.evaluate("(fragment) => { location.hash = fragment; }", fragment)
    settle(page)


def settle(page: Any) -> None:
    """Let watchers and a frame run."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")


def stop_clock(page: Any) -> None:
    """From here on the page's timers run by `page.clock.run_for(milliseconds)` alone: however slow the machine is, a
    test sees every step, and it waits for none. Only for a page of its own: opened with options."""
    page.clock.install(time=0)
    page.clock.pause_at(1)


def node() -> str:
    """The node of the path, otherwise the one that playwright brings."""
    if found := shutil.which("node"):
        return found
    playwright = pytest.importorskip("playwright", reason="needs node, or playwright, which brings one")
    return str(Path(playwright.__file__).parent / "driver" / "node")


def shown_part(page: Any) -> str:
    """The part whose panel is in sight; its tab must say the same."""
    (panel,) = [one for one in PARTS if page.locator(f"#panel-{one}").is_visible()]
    assert page.locator("[role=tab][aria-selected=true]").get_attribute("id") == f"tab-{panel}"
    return panel


def flushed(page: Any) -> str:
    """The fragment, with all that is waiting to be written: it is when somebody goes to another window."""
    return str(page.evaluate("() => { dispatchEvent(new Event('blur')); return location.hash; }"))


class Processor:
    """How long the page kept the processor busy: other work on the machine does not count, as it would on a clock."""

    def __init__(self, page: Any) -> None:
        self.session = page.context.new_cdp_session(page)
        self.session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def seconds(self) -> float:
        metrics = self.session.send("Performance.getMetrics")["metrics"]
        return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))


def violations(page: Any) -> str:
    """What axe finds wrong with the page as it stands: nothing is ""."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    results = axe.Axe().run(page)
    return str(results.generate_report()) if results.violations_count else ""
