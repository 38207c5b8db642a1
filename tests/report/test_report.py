"""The report of training runs: one HTML file with everything in it, and the commands that repeat it."""

from __future__ import annotations

import base64
import csv
import dataclasses
import io
import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import floats, lists, sampled_from
from runs import WORDS, always, ignore_report, never, small_config

from truenorm.cli import main
from truenorm.cli.train import command as train_command
from truenorm.lab import run
from truenorm.lab.config import command_lines, make_config

pytest.importorskip("altair", reason="needs the extra report")
pytest.importorskip("vl_convert", reason="needs the extra report")

from truenorm.report import charts, images
from truenorm.report.charts import scale_of
from truenorm.report.document import Report, differences
from truenorm.report.figures import figures_of
from truenorm.report.runs import COLORS, MAX_RUNS
from truenorm.report.tables import thinned

SOURCE = Path(images.__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two complete runs, one that was stopped, and one that diverged."""
    folder = tmp_path_factory.mktemp("runs")
    words = folder / "words.txt"
    words.write_text("\n".join(WORDS) + "\n", "utf-8")
    run.start(folder / "batch", small_config(words, steps=12), ignore_report, never)
    run.start(folder / "none", small_config(words, steps=12, norm="none", lr=0.02), ignore_report, never)
    with pytest.raises(run.Stopped):
        run.start(folder / "stopped", small_config(words), ignore_report, always)
    diverging = small_config(words, lr=1e30, norm="none", activation="relu", optimizer="sgd", dropout=0.0)
    with pytest.raises(run.Diverged):
        run.start(folder / "diverged", diverging, ignore_report, never)
    return folder


@pytest.fixture(scope="module")
def report(folder: Path) -> Report:
    return Report.of([folder / "batch", folder / "none"])


@pytest.fixture(scope="module")
def html(report: Report) -> str:
    return report.html()


def links(html: str) -> dict[str, list[dict[str, str]]]:
    """The tables that the links of a report hold."""
    found = re.findall(r'download="(\w+)\.csv" href="data:text/csv;base64,([^"]+)"', html)
    return {name: list(csv.DictReader(io.StringIO(base64.b64decode(text).decode()))) for name, text in found}


def test_a_report_needs_neither_scripts_nor_a_network(html: str) -> None:
    assert len(html) < 3_000_000
    assert "<script" not in html
    assert not re.search(r"\b(src|srcset|xlink:href)=|@import|url\((?!#)", html)
    assert set(re.findall(r"https?:[^\"' <]*", html)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in html
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))


def test_every_part_is_in_the_report(html: str, report: Report) -> None:
    titles = re.findall("<h2>(.*?)</h2>", html)
    assert titles == [
        "Losses",
        "Accuracy",
        "Layer outputs",
        "Saturated units",
        "Gradient norms",
        "Update ratios",
        "Drift of the inputs",
        "Batch against running statistics",
        "Lag of the running means",
        *(["Samples"] if any(one.samples for one in report.runs) else []),
        "Configuration",
        "Repeat",
        "Tables",
    ]
    assert html.count("<svg role") == sum(len(figure.pictures) for figure in report.figures)
    panels = {picture.name for figure in report.figures for picture in figure.pictures}
    for layer in ("embed", "linear1", "norm1", "act1", "dropout1", "output"):
        assert f"histograms-1-{layer}" in panels
    assert "histograms-2-norm1" not in panels  # the second run has no norm


def test_tables_hold_what_the_runs_recorded(html: str, folder: Path) -> None:
    tables = links(html)
    lines = [json.loads(line) for line in (folder / "batch" / "metrics.jsonl").read_text().splitlines()]
    losses = [row for row in tables["losses"] if row["run"] == "batch"]
    assert [int(row["step"]) for row in losses] == [line["step"] for line in lines]
    for row, line in zip(losses, lines, strict=True):
        assert float(row["held_out"]) == pytest.approx(line["held_out"], rel=1e-5)
        assert float(row["loss"]) == pytest.approx(line["loss"], rel=1e-5)
    last = lines[-1]["diagnostics"]
    row = next(one for one in reversed(tables["layers"]) if (one["run"], one["layer"]) == ("batch", "act1"))
    assert [int(row[f"bin{number}"]) for number in range(1, 21)] == last["layers"]["act1"]["histogram"]
    row = next(
        one for one in reversed(tables["parameters"]) if (one["run"], one["parameter"]) == ("batch", "norm1.bias")
    )
    assert float(row["gradient_norm"]) == pytest.approx(last["updates"]["norm1.bias"]["norm"], rel=1e-5)
    row = [one for one in tables["running"] if one["channel"] == "2"][-1]
    assert float(row["batch_mean"]) == pytest.approx(last["running"]["norm1"]["batch_mean"][1], rel=1e-5)
    result = json.loads((folder / "none" / "result.json").read_bytes())
    assert float(tables["results"][1]["held_out"]) == pytest.approx(result["held_out"]["loss"], rel=1e-5)


def test_options_that_differ_are_listed(report: Report) -> None:
    assert differences(report.runs) == [
        ("--norm", ["batch", "none"]),
        ("--norm-at", ["before", ""]),
        ("--ddof", ["0", ""]),
        ("--lr", ["0.01", "0.02"]),
    ]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"norm": "none", "steps": 77, "dropout": 0.25, "lr": 1e-05},
        {"task": "gender", "statistics_over": "all", "max_length": 44, "seed": 3},
        {"task": "table", "data": "students", "standardize": False},
        {"task": "table", "data": "a b's.csv", "target": "the target", "optimizer": "sgd", "momentum": 0.9},
        {"data": "surnames", "norm": "group", "groups": 5, "ddof": 1, "norm_at": "after", "dtype": "float64"},
    ],
)
def test_the_commands_repeat_a_run(given: dict[str, Any]) -> None:
    config = make_config(given)
    (first, second) = command_lines(config.extended(5), "a directory")
    assert second == ["truenorm", "train", "--extend", "5", "--out", "a directory"]
    parsed = train_command.make_context("train", shlex.split(shlex.join(first))[2:]).params
    assert str(parsed.pop("out")) == "a directory"
    assert (
        make_config(
            {name: value for name, value in parsed.items() if value and name != "watch"}
            | ({"standardize": False} if parsed["standardize"] is False else {})
        )
        == config
    )


def test_the_commands_of_each_run_are_shown(html: str, folder: Path) -> None:
    text = html[html.index('id="repeat"') :]
    data, out = folder / "words.txt", "repeated/batch"  # another directory than that of the run
    assert (
        f"truenorm train --data {data} --hidden 8 --dropout 0.1 --optimizer adam --lr 0.01 --steps 12 --out {out}\n"
        in text
    )
    assert "truenorm report repeated/batch repeated/none\n" in text
    assert "A run can only be repeated with the same file." in text


@pytest.mark.slow  # checks every specification against Altair's schema
def test_runs_that_are_not_complete_are_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "to_svg", lambda chart, number, text: f"<svg>{chart.to_dict()['width']}</svg>")
    report = Report.of([folder / "stopped", folder / "diverged", folder / "batch"])
    states = [row["state"] for row in links(report.html())["results"]]
    assert states[0] == "not complete: step 1 of 60"
    assert re.fullmatch(r"diverged at step \d+", states[1])
    assert report.runs[1].samples == ()  # no words of a network that diverged
    (folder / "batch" / "metrics.jsonl").rename(folder / "moved")
    try:
        assert "Configuration" in Report.of([folder / "batch"]).html()  # nothing was recorded
    finally:
        (folder / "moved").rename(folder / "batch" / "metrics.jsonl")


def test_what_an_older_run_did_not_record_is_left_out(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "metrics.jsonl"):
        (tmp_path / name).write_bytes((folder / "batch" / name).read_bytes())
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["diagnostics"]["running"], line["held_out_examples"]
        for update in line["diagnostics"]["updates"].values():
            del update["norm"]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    report = Report.of([tmp_path])
    titles = [figure.title for figure in figures_of(report.runs, report.tables)]
    assert "Gradient norms" not in titles
    assert "Batch against running statistics" not in titles
    assert {"Losses", "Update ratios", "Lag of the running means"} <= set(titles)


def test_names_from_files_are_text(folder: Path, tmp_path: Path) -> None:
    bad = '</svg><script>alert("1")</script>&\x1b[31m\x01\ufffe\udc80'  # some of them XML cannot hold
    out = tmp_path / '<b onclick="x">\x1b'
    out.mkdir()
    (out / "config.json").write_bytes((folder / "batch" / "config.json").read_bytes())
    line = json.loads((folder / "batch" / "metrics.jsonl").read_text().splitlines()[-1])
    layers = line["diagnostics"]["layers"]
    line["diagnostics"]["layers"] = {bad: layers["act1"]}
    (out / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    report = Report.of([out])
    text = report.html()
    assert "<script" not in text
    assert "<b onclick" not in text
    assert "&lt;/svg&gt;&lt;script&gt;" in text
    assert all(re.fullmatch(r"[\w.-]+", name) for name, _ in report.csv_files())


@pytest.mark.parametrize("name", ["constructor", "toString", "__proto__", "hasOwnProperty"])
def test_names_that_every_javascript_object_has_are_names_like_others(name: str, report: Report) -> None:
    rows = [{"run": name, "step": step, "value": 1.0, "batch": 1.0, "running": 1.0} for step in (1, 2)]
    line = dataclasses.replace(report.runs[0], name=name)
    for chart in (
        charts.lines(rows, [line], name),
        charts.histograms([{"step": 1, "counts": [1] * 20}], line.color, name),
        charts.batch_and_running(rows, line.color, name),
        charts.losses([row | {"loss": 2.0, "held_out": 3.0} for row in rows], (), [line], charts.WIDE, "loss"),
    ):
        assert re.search(rf">{name} ?</text>", images.to_svg(chart, 1, ""))


@given(lists(floats(allow_nan=False, allow_infinity=False) | sampled_from([0.0, 5e-324, 1e-300, 1.7e308, -1.7e308])))
def test_every_finite_value_has_a_scale(values: list[float]) -> None:
    scale = scale_of(values)
    assert all(map(math.isfinite, [scale.low, scale.high, *scale.ticks]))
    assert scale.low < scale.high
    assert 1 < len(scale.ticks) < 12


def test_losses_of_numbers_and_of_classes_are_not_put_side_by_side(tmp_path: Path) -> None:
    for name, many in (("number", 40), ("class", 2)):
        table = tmp_path / f"{name}.csv"
        table.write_text("x,y\n" + "".join(f"{i % 9},{i % many}\n" for i in range(40)))
        options = {"task": "table", "data": str(table), "target": "y", "steps": 3, "hidden": 2}
        run.start(tmp_path / name, make_config(options), ignore_report, never)
        assert "<svg" in Report.of([tmp_path / name]).html()
    message = f"got numbers in {tmp_path}/number and classes in {tmp_path}/class, whose losses cannot be compared. "
    with pytest.raises(ValueError, match=re.escape(message)):
        Report.of([tmp_path / "class", tmp_path / "number"])


def test_a_loss_near_the_largest_number_is_drawn(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "config.json").write_bytes((folder / "batch" / "config.json").read_bytes())
    lines = (folder / "batch" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1]) | {"loss": 1.8e307, "held_out_loss": 1.79e308}
    (out / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    assert "<svg" in Report.of([out]).html()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["."], "truenorm: .: neither a training run nor the results of a comparison: it has no config.json and no "),
        (
            ["missing"],
            "truenorm: missing: neither a training run nor the results of a comparison: it does not exist.\n",
        ),
        (["words.txt"], "truenorm: words.txt: Not a directory.\n"),
        (["batch", "./batch"], "truenorm: report: each run once, got batch twice.\n"),
        (["batch"] * 9, f"truenorm: report: at most {MAX_RUNS} runs side by side, got 9.\n"),
        (["batch", "gender"], "truenorm: report: runs of one --task, got gender and words. Write a report for each.\n"),
        (["batch", "--out", "words.txt"], "truenorm: words.txt: exists and is not a report. Choose another name, or "),
        (["batch", "--out", "nowhere/a.html"], "truenorm: nowhere: there is no such directory.\n"),
        ([], "truenorm: Missing argument 'RUN...'. See 'truenorm report --help'.\n"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    message: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    Path("gender").mkdir(exist_ok=True)
    Path("gender/config.json").write_text('{"task": "gender"}')
    before = sorted(Path().iterdir())
    with pytest.raises(SystemExit) as stop:
        main(["report", *arguments])
    printed = capsys.readouterr()
    assert (stop.value.code, printed.out) == (2, "")
    assert printed.err.startswith(message)
    assert printed.err.count("\n") == 1
    assert sorted(Path().iterdir()) == before


def test_control_characters_of_a_file_name_are_escaped(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as stop:
        main(["report", "batch", "--out", "a\x1b[2Jb.html"])
    assert not stop.value.code
    assert capsys.readouterr().out.startswith("Written: a\\u001b[2Jb.html (")


def test_the_style_knows_every_colour_of_the_charts() -> None:
    style = (SOURCE / "style.css").read_text("utf-8")
    for color in COLORS:
        assert f'svg [fill="{color}"]' in style
        assert f'svg [stroke="{color}"]' in style
    for rule in (f'[fill="{charts.TEXT}"]', f'[fill="{charts.MUTED}"]', f'[stroke="{charts.GRID}"]'):
        assert f"svg {rule}" in style
    assert len(set(COLORS)) == MAX_RUNS


def test_only_known_colours_are_drawn(html: str) -> None:
    drawn = set(re.findall(r'(?:fill|stroke)="(#\w+)"', html))
    assert drawn <= {*COLORS, charts.TEXT, charts.MUTED, charts.GRID, charts.PAPER}
    assert {COLORS[0], COLORS[1]} <= drawn


@pytest.mark.parametrize(
    "values", [[2.0, 3.1], [0.0, 0.0], [1e-9, 5.0], [-3.0, 40.0], [7.0], [], [0.0, 1e-3, 50.0], [1e-30, 1.0]]
)
def test_scales_cover_their_values(values: list[float]) -> None:
    scale = scale_of([*values, None])
    for value in values:
        if scale.holds(value):
            assert scale.clipped(value) == pytest.approx(value)
            assert scale.value_at(scale.place(value, 300), 300) == pytest.approx(value)
    assert scale.low < scale.high
    assert 2 <= len(scale.ticks) <= 8


def test_a_run_that_diverges_does_not_hide_the_others() -> None:
    rows = [{"run": "good", "loss": 3.0, "held_out": 2.0}, {"run": "bad", "loss": 1e9, "held_out": None}]
    assert charts.most_shown(rows) == 9.0
    assert charts.most_shown(rows[:1]) == 9.0
    found = [row | {"step": 1} for row in rows]
    scale = charts.losses(found, [], [], charts.NARROW, "loss").to_dict()["layer"][0]["encoding"]["y"]["scale"]
    assert scale["domain"][0] <= 2.0
    assert scale["domain"][1] >= 9.0
    assert scale["domain"][1] < 20


def test_long_runs_are_thinned() -> None:
    reports: list[Any] = list(range(1000))
    few: list[Any] = list(thinned(reports, 10))
    assert (few[0], few[-1], len(few)) == (0, 999, 10)
    assert thinned(reports[:10], 10) == reports[:10]
