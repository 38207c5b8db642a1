"""Tables are made from the JSON alone, and written between their markers."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bench import table
from bench.cases import SUITES
from bench.table import ROOT, SHORT, main, publish, render, render_short, replace
from click.testing import CliRunner


def made_up(**rounds: Any) -> dict[str, Any]:
    def times(median: float) -> dict[str, Any]:
        return {"seconds": {"median": median, "low": median, "high": median}, "speed": {"median": 2.0}}

    return {
        "machine": {
            "cpu": "A processor",
            "system": "Linux x86_64",
            "engine": "native",
            "versions": {"python": "3.11.0", "jax": None},
            "revision": None,
        },
        "settings": {"threads": 2, "allocator": "reuse"},
        "suites": [
            {
                "name": "small",
                "title": "batch norm, 4x7x5",
                "baseline": "peer",
                "rounds": {"total": 12, "quiet": 11, "disturbed": False} | rounds,
                "copy": {"seconds": {"median": 2e-6}},
                "implementations": [
                    {"name": "truenorm", "status": "ok", "both": times(0.0052), "forward": times(2.5e-5)},
                    {"name": "peer", "status": "ok", "both": times(1.25), "forward": times(0.5)},
                    {"name": "other", "status": "missing: other"},
                ],
                "comparisons": [
                    {"against": "peer", "part": "both", "ratio": {"median": 4.0, "low": 3.9, "high": 4.126}},
                    {"against": "other", "part": "both", "ratio": None},
                    {"against": "copy", "part": "forward", "ratio": {"median": 0.08, "low": 0.07, "high": 0.09}},
                ],
            }
        ],
    }


BEGIN, END = "<!-- bench -->", "<!-- /bench -->"
CAPTION = """\
Times are medians of 11 interleaved rounds. A ratio is the median of the ratios within each round, with quartiles in \
parentheses; it is not the quotient of the two medians. float32; the allocator reuses freed memory for all \
implementations, so page faults are not measured. A processor, 2 threads, Linux x86_64; engine native; python 3.11.0; \
revision unknown.
"""
TABLE = f"""\
| forward + backward | compared with | truenorm | other | speedup |
| --- | --- | ---: | ---: | ---: |
| batch norm, 4x7x5 | peer | 5.2 ms | 1.25 s | 4.00 (3.90 to 4.13) |
|  | other | 5.2 ms | missing | not measured |

| forward | truenorm | copy | share of a copy's bytes/s |
| --- | --- | ---: | ---: |
| batch norm, 4x7x5 | 25 us | 2 us | 8% (7% to 9%) |

{CAPTION}"""
SHORT_TABLE = f"""\
| forward + backward | compared with | truenorm | other | speedup |
| --- | --- | ---: | ---: | ---: |
| batch norm, 4x7x5 | peer | 5.2 ms | 1.25 s | 4.00 (3.90 to 4.13) |

{CAPTION}"""


@pytest.fixture
def one_short_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "SHORT", (("small", "peer"),))


def test_the_table_is_made_from_the_json_alone() -> None:
    assert render(json.loads(json.dumps(made_up()))) == TABLE


def test_every_implementation_can_be_shown() -> None:
    shown = render(made_up(), every=True)
    assert "| batch norm, 4x7x5 | truenorm | 5.2 ms | 25 us | 2.00 |" in shown
    assert "|  | peer (baseline) | 1.25 s | 500 ms | 2.00 |" in shown
    assert "|  | other | missing | missing |  |" in shown


@pytest.mark.usefixtures("one_short_row")
def test_the_short_table_has_only_its_rows() -> None:
    assert render_short(made_up()) == SHORT_TABLE


@pytest.mark.parametrize(
    ("low", "high", "shown"), [(0.95, 1.11, "about equal: 1.03 (0.95 to 1.11)"), (1.01, 1.05, "1.03 (1.01 to 1.05)")]
)
def test_a_speedup_whose_quartiles_enclose_1_is_about_equal(low: float, high: float, shown: str) -> None:
    results = made_up()
    results["suites"][0]["comparisons"][0]["ratio"] = {"median": 1.03, "low": low, "high": high}
    assert f"| peer | 5.2 ms | 1.25 s | {shown} |" in render(results)


def test_the_table_says_that_other_processes_were_busy() -> None:
    assert "**Other processes were busy during small: these times are not reliable.**" in render(
        made_up(disturbed=True)
    )


def test_the_table_is_written_between_its_markers_and_nothing_else_changes() -> None:
    page = f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n"
    once = replace(page, "new\n")
    assert once == f"before\n\n{BEGIN}\nnew\n{END}\n\nafter\n"
    assert replace(once, "new\n") == once


@pytest.mark.parametrize("page", ["", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}"])
def test_a_page_without_the_two_markers_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match=f"bench.table: the text needs {BEGIN} and then {END}, once each."):
        replace(page, "new")


@pytest.mark.usefixtures("one_short_row")
def test_disturbed_results_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme, speed, results = tmp_path / "README.md", tmp_path / "docs/speed.md", tmp_path / "results.json"
    speed.parent.mkdir()
    for page in (readme, speed):
        page.write_text(f"{BEGIN}{END}", "utf-8")
    monkeypatch.setattr(table, "publish", partial(publish, root=tmp_path))
    for busy, code in ((True, 1), (False, 0)):
        results.write_text(json.dumps(made_up(disturbed=busy)), "utf-8")
        done = CliRunner().invoke(main, [str(results), "--write"])
        assert done.exit_code == code
        message = "Error: other processes were busy during small. Measure again on a quiet machine.\n"
        assert done.output == (message if busy else "")
        assert (readme.read_text("utf-8") == f"{BEGIN}{END}") == busy
    assert readme.read_text("utf-8") == f"{BEGIN}\n{SHORT_TABLE}{END}"
    assert speed.read_text("utf-8") == f"{BEGIN}\n{TABLE}{END}"


def test_the_pages_show_the_recorded_results() -> None:
    results = json.loads((ROOT / "bench/results.json").read_text("utf-8"))
    for page, expected in (("README.md", render_short(results)), ("docs/speed.md", render(results))):
        text = (ROOT / page).read_text("utf-8")
        assert replace(text, expected) == text


def test_the_rows_of_the_readme_are_in_the_suites() -> None:
    compared = {(suite.name, peer) for suite in SUITES for peer in suite.compared_with}
    assert compared.issuperset(SHORT)
    assert 4 <= len(SHORT) <= 6
