"""What a run recorded, read from its directory, whatever state it is in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from runs import always, ignore_report, never, small_config

from truenorm.lab import run
from truenorm.lab.history import read_history


def test_the_history_holds_what_was_reported(words: Path, tmp_path: Path) -> None:
    reports: list[run.Report] = []
    result = run.start(tmp_path / "run", small_config(words, steps=4), reports.append, never)
    history = read_history(tmp_path / "run")
    assert (history.result, history.step, history.diverged_at) == (result, 4, None)
    assert (history.problem() is None) == (history.warning("words") is None) == result["baseline"]["beaten"]
    assert history.config == run.read_config(tmp_path / "run")
    for read, reported in zip(history.reports, reports, strict=True):
        assert read.model_dump(exclude_unset=True) == {
            **reported,
            "held_out_examples": tuple(reported["held_out_examples"]),
            "diagnostics": {name: value for name, value in reported["diagnostics"].items() if name != "inputs"},
        }
    last = history.reports[-1].diagnostics
    assert len(last.running["norm1"].batch_mean) == 4
    assert last.updates["output.weight"].norm is not None


def test_a_sample_of_the_held_out_examples_says_so(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[run.Report] = []
    result = run.start(tmp_path / "all", small_config(words, steps=3), reports.append, never)
    count = reports[-1]["held_out_examples"][0]
    assert reports[-1]["held_out_examples"] == [count, count]
    assert reports[-1]["held_out"] == result["held_out"]["loss"]  # the same measure
    monkeypatch.setattr(run, "REPORT_EXAMPLES", 2)
    run.start(tmp_path / "sample", small_config(words, steps=3), reports.append, never)
    assert reports[-1]["held_out_examples"] == [2, count]


def test_an_unfinished_run_and_a_line_that_is_being_written(words: Path, tmp_path: Path) -> None:
    with pytest.raises(run.Stopped):
        run.start(tmp_path / "run", small_config(words), ignore_report, always)
    metrics = tmp_path / "run" / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes() + b'{"step": 2, "lo')
    history = read_history(tmp_path / "run")
    assert (history.result, history.step, len(history.reports)) == (None, 1, 1)
    assert history.warning("words") == "The run is not complete: step 1 of 60. Its words may get better."
    metrics.unlink()
    assert read_history(tmp_path / "run").reports == []


def test_a_run_that_diverged_says_so(words: Path, tmp_path: Path) -> None:
    config = small_config(words, lr=1e30, norm="none", activation="relu", optimizer="sgd", dropout=0.0)
    with pytest.raises(run.Diverged, match=r"step \d+: training diverged, the loss is (nan|inf)\. Choose a lower --lr"):
        run.start(tmp_path / "run", config, ignore_report, never)
    history = read_history(tmp_path / "run")
    assert history.result is None
    assert history.problem() == f"Training diverged at step {history.diverged_at}."
    assert history.warning("words") == f"{history.problem()} Its words are worth little."
    recorded = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(run.Diverged):
        run.resume(tmp_path / "run", ignore_report, never)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == recorded


def test_a_run_of_an_older_version_is_read(words: Path, tmp_path: Path) -> None:
    run.start(tmp_path / "run", small_config(words, steps=5), ignore_report, never)
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_bytes().splitlines()]
    for line in lines:
        del line["held_out_examples"], line["diagnostics"]["running"]
        for update in line["diagnostics"]["updates"].values():
            del update["norm"]
    metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    last = read_history(tmp_path / "run").reports[-1]
    assert (last.held_out_examples, last.diagnostics.running) == (None, {})
    assert last.diagnostics.updates["output.weight"].norm is None


@pytest.mark.parametrize(
    "change",
    [
        {"step": 10**400},
        {"step": -1},
        {"step": 0},
        {"loss": "much"},
        {"loss": 10**400},
        {"diagnostics": []},
        {"diagnostics": {"layers": {"act1": {"mean": 0, "std": 1, "histogram": [1, 2]}}}},
    ],
)
def test_damaged_metrics_name_the_line(change: dict[str, Any], words: Path, tmp_path: Path) -> None:
    run.start(tmp_path / "run", small_config(words, steps=3), ignore_report, never)
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | change)
    metrics.write_text("\n".join([*lines, ""]))
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2: damaged, "):
        read_history(tmp_path / "run")
