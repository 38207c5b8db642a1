"""The command `truenorm report` as a whole: its files, and the report in a real browser."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from browser import PHONE, new_page, violations
from runs import WORDS

from truenorm.cli import main

pytest.importorskip("altair", reason="needs the extra report")
pytest.importorskip("vl_convert", reason="needs the extra report")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of eight runs, the most that there can be, and one of a single run with all its files."""
    folder = tmp_path_factory.mktemp("report")
    words = folder / "words.txt"
    words.write_text("\n".join(WORDS) + "\n", "utf-8")
    call(
        "train", "--data", str(words), "--hidden", "8", "--depth", "3", "--steps", "120", "--out", str(folder / "run0")
    )
    for number in range(1, 8):
        copytree(folder / "run0", folder / f"run{number}")
    call("report", *(str(folder / f"run{number}") for number in range(8)), "--out", str(folder / "report.html"))
    call("report", str(folder / "run0"), "--out", str(folder / "one.html"), "--png", "--svg", "--csv")
    return folder


def call(*arguments: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert not stop.value.code


def test_eight_deep_runs_stay_below_3_mb(written: Path) -> None:
    assert 300_000 < (written / "report.html").stat().st_size < 3_000_000


def test_charts_and_tables_are_also_files(written: Path) -> None:
    files = {file.name: file.read_bytes() for file in (written / "one-files").iterdir()}
    assert {"losses.csv", "layers.csv", "losses.png", "losses.svg", "histograms-1-norm1.png"} <= set(files)
    assert "losses-narrow.png" not in files
    for name, content in files.items():
        start = {"png": b"\x89PNG", "svg": b"<svg ", "csv": b"run,"}[name.rsplit(".", 1)[1]]
        assert content.startswith(start), name


def test_the_same_run_gives_the_same_report(written: Path) -> None:
    first = (written / "one.html").read_bytes()
    call("report", str(written / "run0"), "--out", str(written / "one.html"))
    assert (written / "one.html").read_bytes() == first


@pytest.mark.parametrize(
    "settings", [{}, {"color_scheme": "dark"}, {"viewport": PHONE}, {"java_script_enabled": False}], ids=json.dumps
)
def test_a_browser_without_a_network_shows_it(browser: Any, written: Path, settings: dict[str, Any]) -> None:
    address, wrong = (written / "one.html").as_uri(), list[str]()
    page = new_page(browser, address, wrong, {"offline": True} | settings)
    page.goto(address)
    assert wrong == []
    assert page.locator("h2").first.text_content() == "Losses"
    charts = page.locator(".picture svg")
    sizes = [charts.nth(i).bounding_box() for i in range(charts.count())]
    shown = [size for size in sizes if size and size["width"]]
    assert len(shown) == len(sizes) - 1  # of the losses, one of two charts
    width = page.viewport_size["width"]
    assert all(size["x"] >= 0 and size["x"] + size["width"] <= width for size in shown)
    if settings.get("java_script_enabled", True):
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(page) == ""
        colors = page.evaluate("['background-color', 'color'].map(n => getComputedStyle(document.documentElement)[n])")
        dark = settings.get("color_scheme") == "dark"
        assert colors[0] == ("rgb(22, 24, 27)" if dark else "rgb(253, 252, 250)")
    page.context.close()
