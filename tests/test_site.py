"""The documentation site: every page is in it, all links work, and it needs no network."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from browser import DESKTOP, PATIENCE, PHONE
from tools import docs_site

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("zensical", "mkdocstrings_handlers")


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r": ([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))
    written = {page.name for page in (ROOT / "docs").glob("*.md")}
    assert written <= listed
    made = {"security.md", "decisions/index.md", *(f"reference/{name}.md" for name in docs_site.REFERENCE)}
    assert listed == written | made


def test_wrong_links_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "one.html").write_text(
        '<h1 id="top">One</h1><a href="two.html#there"></a><a href="#top"></a><a href="two.html#missing"></a>'
        '<a href="three.html"></a><a href="https://example.org"></a><script src="https://example.org/x.js"></script>'
        '<link href="//example.org/font.css" rel="stylesheet">'
    )
    (tmp_path / "two.html").write_text('<h2 id="there">Two</h2><img src="none.png">')
    assert docs_site.check(tmp_path) == [
        "one.html loads https://example.org/x.js",
        "one.html loads //example.org/font.css",
        "one.html links to two.html#missing, which has no such anchor",
        "one.html links to three.html, which is not there",
        "two.html links to none.png, which is not there",
    ]


def test_links_of_the_notes_open_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs_site, "PAGES", tmp_path / "docs")
    docs_site.write_pages()
    notes = (tmp_path / "docs/notes.md").read_text("utf-8")
    assert "| [`#part=network&network.step=dγ`](<truenorm.html#part=network&network.step=dγ>) |" in notes
    assert "| `#part=" not in notes


# What a new user looks for, and the page that has it.
SEARCHES = {
    "install": "index.html",
    "pytorch example": "index.html",
    "spectrograms": "cookbook.html",
    "masks spectrograms": "masks.html",
    "export onnx": "deployment.html",
    "differences from pytorch": "differences.html",
}


# One test, as the site is built in one place, and takes half a minute.
@pytest.mark.slow
def test_the_site_works_from_disk_without_a_network(request: pytest.FixtureRequest) -> None:
    if any(importlib.util.find_spec(package) is None for package in PACKAGES):
        pytest.skip("needs zensical and mkdocstrings-python: make docs installs them")
    docs_site.main()  # checks the links
    browser, wrong = request.getfixturevalue("browser"), list[str]()
    reference = (docs_site.SITE / "reference/layers.html").read_text("utf-8")
    assert "BatchNorm1d.forward" in reference
    assert "the first lengths[i] positions of sample i are valid" in reference
    pages = sorted(docs_site.SITE.rglob("*.html"))
    assert len(pages) > 35
    screens: list[dict[str, Any]] = [{"viewport": DESKTOP}, {"viewport": PHONE, "color_scheme": "dark"}]
    for options in screens:
        page = browser.new_context(offline=True, **options).new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda one: wrong.append(one.text) if one.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        # A request is aborted when the next page is opened before it ends.
        page.on("requestfailed", lambda one: wrong.append(one.url) if one.failure != "net::ERR_ABORTED" else None)
        page.on("request", lambda one: wrong.append(one.url) if one.url.startswith("http") else None)
        for file in pages:
            page.goto(file.as_uri(), wait_until="load")
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= options["viewport"]["width"], f"{file.name} is {width} pixels wide"
        for words, found in SEARCHES.items():
            assert_search_finds(page, words, found)
        page.context.close()
    assert wrong == []


def assert_search_finds(page: Any, words: str, file: str) -> None:
    page.goto((docs_site.SITE / "reference/layers.html").as_uri())
    page.keyboard.press("/")
    page.locator("input[type=search], input[placeholder], [role=combobox]").last.wait_for()
    page.keyboard.type(words)
    page.locator(f"a[href*='/{file}?h=']").first.wait_for()
