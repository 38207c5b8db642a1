"""The report of a comparison: its numbers are those of the trials, and its command repeats it."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from browser import PHONE, new_page, violations
from fake_trials import fake_work, small_grid

from truenorm.cli import main
from truenorm.lab.grid import Grid
from truenorm.lab.intervals import t_interval
from truenorm.lab.results import Results, make_plan
from truenorm.lab.summary import Cell
from truenorm.lab.trial import Trial

pytest.importorskip("altair", reason="needs the extra report")
pytest.importorskip("vl_convert", reason="needs the extra report")

from truenorm.report import charts, images
from truenorm.report.comparison import MAX_ROWS, ComparisonReport
from truenorm.report.html import MAX_EMBEDDED
from truenorm.report.kinds import report_of
from truenorm.report.runs import COLORS
from truenorm.report.settings import ONLY, Line
from truenorm.report.tables import Row

STEPS = (10, 20)
LR = (0.1, 0.3, 3.0)


def loss_of(trial: Trial) -> float:
    """Batch norm is best at 0.3, no norm at 0.1."""
    base = {("none", 0.1): 2.5, ("none", 0.3): 2.6, ("batch", 0.1): 2.4, ("batch", 0.3): 2.3}
    return base.get((trial.config.norm, trial.config.lr), 2.9) + 0.01 * trial.config.seed**2


def result_of(trial: Trial) -> dict[str, Any]:
    """Without a norm, lr 3 always diverges; with batch norm it does so for seed 1."""
    loss = loss_of(trial)
    diverged = trial.config.lr == 3.0 and (trial.config.norm == "none" or trial.config.seed == 1)
    result: dict[str, Any] = json.loads(fake_work(trial)[0])["result"]
    final = None if diverged else {"loss": loss, "accuracy": 0.25, "rmse": None}
    train = None if diverged else {"loss": loss - 0.1, "accuracy": 0.3, "rmse": None}
    curve = {"step": list(STEPS), "loss": [loss, loss - 0.1], "held_out": [loss + 0.2, loss]}
    return result | {"diverged": 5 if diverged else None, "held_out": final, "train": train, "curve": curve}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 x 3 settings with 4 seeds. One trial failed, and one was never run."""
    folder = tmp_path_factory.mktemp("comparison")
    words = folder / "words.txt"
    words.write_text("anna\nbob\nava\notto\neve\n")
    grid = small_grid(words, seeds=4, lr=LR)
    with Results(folder / "results", make_plan([grid])) as results:
        for trial in grid.trials():
            if (trial.config.norm, trial.config.lr, trial.config.seed) == ("none", 0.3, 3):
                results.failed[trial.name] = "memory: <b>none</b> left."
            elif (trial.config.norm, trial.config.lr, trial.config.seed) != ("none", 0.3, 2):
                results.add(trial, trial.encode(result_of(trial)), 1.5)
        results.events.append("a worker ended")
        results.sessions.append({"trials": 22, "workers": 2, "seconds": 17.0})
    return folder / "results"


@pytest.fixture(scope="module")
def report(results: Path) -> ComparisonReport:
    found = report_of([results])
    assert isinstance(found, ComparisonReport)
    return found


@pytest.fixture(scope="module")
def html(report: ComparisonReport) -> str:
    return report.html()


def tables(html: str) -> dict[str, list[dict[str, str]]]:
    """The tables that the links of a report hold."""
    found = re.findall(r'download="(\w+)\.csv" href="data:text/csv;base64,([^"]+)"', html)
    return {name: list(csv.DictReader(io.StringIO(base64.b64decode(text).decode()))) for name, text in found}


def test_settings_are_those_of_the_trials_best_first(html: str) -> None:
    rows = tables(html)["settings"]
    assert [(row["norm"], row["lr"]) for row in rows] == [
        ("batch", "0.3"),
        ("batch", "0.1"),
        ("none", "0.1"),
        ("none", "0.3"),
        ("batch", "3"),
        ("none", "3"),
    ]
    losses = [2.3 + 0.01 * seed**2 for seed in range(4)]
    assert float(rows[0]["held_out"]) == pytest.approx(fmean(losses), rel=1e-5)
    assert [float(rows[0][name]) for name in ("low", "high")] == pytest.approx(t_interval(losses), rel=1e-5)
    assert [row["trials"] for row in rows] == ["4", "4", "4", "2", "4", "4"]
    assert [row["diverged"] for row in rows] == ["0", "0", "0", "0", "1", "4"]
    assert [row["missing"] for row in rows] == ["0", "0", "0", "2", "0", "0"]
    assert rows[5]["held_out"] == rows[5]["low"] == ""


def test_differences_to_the_best_are_taken_seed_by_seed(html: str) -> None:
    rows = tables(html)["settings"]
    assert rows[0]["difference"] == ""
    assert [float(rows[2][name]) for name in ("difference", "difference_low", "difference_high")] == pytest.approx(
        [0.2] * 3
    )
    assert float(rows[2]["high"]) - float(rows[2]["low"]) > 0.1  # the seeds alone differ much more
    assert float(rows[3]["difference"]) == pytest.approx(0.3)  # of the two seeds that it has


def test_curves_are_means_over_the_seeds_of_the_best_settings(html: str) -> None:
    rows = tables(html)["curves"]
    found = {(row["option"], row["value"]): row["setting"] for row in rows}
    assert found == {
        ("norm", "none"): "norm none, lr 0.1",
        ("norm", "batch"): "norm batch, lr 0.3",
        ("lr", "0.1"): "norm batch, lr 0.1",
        ("lr", "0.3"): "norm batch, lr 0.3",
        ("lr", "3.0"): "norm batch, lr 3.0",
    }
    last = {(row["option"], row["value"]): row for row in rows if row["step"] == "20"}
    batch = last["norm", "batch"]
    assert float(batch["held_out"]) == pytest.approx(fmean(2.3 + 0.01 * seed**2 for seed in range(4)), rel=1e-5)
    assert (float(batch["lowest"]), float(batch["highest"])) == pytest.approx((2.3, 2.39), rel=1e-5)
    assert float(batch["loss"]) == pytest.approx(float(batch["held_out"]) - 0.1, rel=1e-5)
    assert last["lr", "3.0"]["seeds"] == "3"  # seed 1 diverged


def test_every_part_is_in_the_report(html: str, results: Path, report: ComparisonReport) -> None:
    assert re.findall("<h2>(.*?)</h2>", html) == [
        "Settings",
        "Held-out loss",
        "Losses by norm",
        "Losses by lr",
        "Failed trials",
        "Repeat",
        "Tables",
    ]
    text = re.sub(r"\s+", " ", re.sub("<[^>]+>", "", html))
    assert "6 settings, each trained with 4 seeds: 24 trials. 22 are finished, of which 5 diverged." in text
    assert "1 trial failed. 1 trial has no result yet." in text
    assert "memory: &lt;b&gt;none&lt;/b&gt; left." in html
    assert "The best setting with each norm (none: lr 0.1; batch: lr 0.3)." in text
    assert "The best setting with each lr (0.1: norm batch; 0.3: norm batch; 3.0: norm batch)." in text
    assert "a worker ended" in text
    assert html.count("<svg role") == sum(len(figure.pictures) for figure in report.figures) == 6
    trials = tables(html)["trials"]
    assert len(trials) == 22
    assert tables(html)["failed"][0]["error"] == "memory: <b>none</b> left."
    words = results.parent / "words.txt"
    command = f"truenorm compare --data {words} --norm none,batch --embedding 2 --hidden 8 --lr 0.1,0.3,3.0 --steps 20"
    assert f"{command} --seeds 4 --out repeated/results\ntruenorm report repeated/results\n" in html


def test_it_needs_neither_scripts_nor_a_network(html: str) -> None:
    assert len(html) < 3_000_000
    assert "<script" not in html
    assert not re.search(r"\b(src|srcset|xlink:href)=|@import|url\((?!#)", html)
    assert set(re.findall(r"https?:[^\"' <]*", html)) == {"http://www.w3.org/2000/svg"}
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))


def test_only_seeds_are_one_setting(words: Path, tmp_path: Path) -> None:
    grid = small_grid(words, seeds=1, norm=("layer",))
    with Results(tmp_path / "out", make_plan([grid])) as results:
        empty = ComparisonReport.of(tmp_path / "out")
        assert empty.figures == []  # no trial is done
        assert "1 trial has no result yet." in empty.html()
        for trial in grid.trials():
            results.add(trial, trial.encode(result_of(trial)))
    report = ComparisonReport.of(tmp_path / "out")
    assert [figure.title for figure in report.figures] == ["Held-out loss", "Losses"]
    (row,) = tables(report.html())["settings"]
    assert (row["low"], row["difference"]) == ("", "")  # of one seed there is no interval


def test_many_settings_stay_below_3_mb(words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page shows some of them, and says so; the tables have all."""
    drawn: list[Any] = []

    def draw(chart: Any, number: int, text: str) -> str:
        drawn.append(chart)
        return "<svg></svg>"

    monkeypatch.setattr(images, "to_svg", draw)
    lrs, scales = (tuple((1 + number) / 100 for number in range(count)) for count in (12, 20))
    grid = small_grid(words, seeds=2, lr=lrs, init_scale=scales)
    with Results(tmp_path / "out", make_plan([grid])) as results:
        for trial in grid.trials():
            results.add(trial, trial.encode(result_of(trial)))
    report = ComparisonReport.of(tmp_path / "out")
    monkeypatch.setattr("truenorm.report.html.MAX_EMBEDDED", 80_000)
    html = report.html()
    assert html.count("<tr>") == 1 + MAX_ROWS
    assert f"The best {MAX_ROWS} of 480 settings; settings.csv has all." in html
    assert "The best 40 of 480 settings; the table has all." in html
    assert "8 of 20 values are drawn" in html
    assert "trials.csv</strong> (too large for this page: use --csv)" in html
    assert len(drawn) == 8
    assert dict(report.csv_files())["trials.csv"].count(b"\n") == 961
    assert MAX_EMBEDDED < 3_000_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["."], "neither a training run nor the results of a comparison: it has no config.json and no grid.json."),
        (["none"], "neither a training run nor the results of a comparison: it does not exist."),
        (["file"], "Not a directory."),
        (["other"], "the results are of another version of truenorm. Choose another directory."),
        (
            ["claims"],
            "holds the results of truenorm claims, not of a comparison. Their page: truenorm claims --out claims "
            "--write claims.md",
        ),
    ],
)
def test_other_directories_are_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with Results(Path("claims"), make_plan([Grid("undo", {"seed": (0, 1)})])):
        pass
    Path("other").mkdir()
    Path("other/grid.json").write_text('{"format": "truenorm-results-0"}')
    before = sorted(Path().iterdir())
    with pytest.raises(SystemExit) as stop:
        main(["report", *arguments])
    assert stop.value.code == 2
    assert capsys.readouterr() == ("", f"truenorm: {arguments[0]}: {message}\n")
    assert sorted(Path().iterdir()) == before


def test_results_are_reported_alone(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["report", str(results), str(results)])
    assert stop.value.code == 2
    message = f"report: the results of a comparison alone, got {results} beside others. Leave one out."
    assert capsys.readouterr().err == f"truenorm: {message}\n"


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"viewport": PHONE, "color_scheme": "dark"}])
def test_the_report_in_a_browser(results: Path, tmp_path: Path, browser: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["report", str(results), "--out", str(tmp_path / "a.html"), "--png", "--csv"])
    assert not stop.value.code
    files = {file.name for file in (tmp_path / "a-files").iterdir()}
    assert files == {
        *("settings.csv", "curves.csv", "trials.csv", "failed.csv"),
        *("intervals.png", "curves-norm.png", "curves-lr.png"),
    }
    wrong: list[str] = []
    address = (tmp_path / "a.html").as_uri()
    page = new_page(browser, address, wrong, {"offline": True, **settings})
    page.goto(address)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("svg[role=img]:visible").count() == 3
    assert violations(page) == ""
    page.context.close()
    assert wrong == []


@pytest.mark.parametrize(
    ("low", "high", "is_cut"),
    [(2.1, 2.6, False), (-3.0, 2.6, True), (2.1, 9.0, True), (0.01, 2.6, True)],
)
def test_an_interval_is_drawn_whole_unless_it_is_much_longer_than_the_others(
    low: float, high: float, is_cut: bool
) -> None:
    """2.2 to 2.5 are the values; an interval of two seeds may be forty times as long."""
    rows: list[Row] = [
        {"setting": "a", "run": ONLY, "mean": 2.25, "low": 2.2, "high": 2.3},
        {"setting": "b", "run": ONLY, "mean": 2.45, "low": low, "high": high},
    ]
    dots: list[Row] = [{"setting": "b", "run": ONLY, "value": value} for value in (2.2, 2.5)]
    lines = [Line(ONLY, COLORS[0], Cell({}))]
    chart, cut = charts.intervals(rows, dots, lines, charts.WIDE, "loss")
    assert cut == is_cut
    drawn = next(layer["data"]["values"] for layer in chart.to_dict()["layer"] if layer["mark"]["type"] == "rule")
    edges = {value for row in drawn for value in (row["low"], row["high"])}
    assert {low, high} <= edges if not is_cut else not {low, high} <= edges
    assert max(edges) - min(edges) < 1.5
