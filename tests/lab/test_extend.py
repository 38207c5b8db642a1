"""Runs that are extended: they go on from their last step, whatever interrupts them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from runs import always, contents, ignore_report, never, small_config

from truenorm.lab import checkpoint, run
from truenorm.lab.config import options_of
from truenorm.lab.directory import RunDirectory


def test_an_extended_run_equals_one_that_had_all_steps_from_the_start(words: Path, tmp_path: Path) -> None:
    long, short = tmp_path / "long", tmp_path / "short"
    config = small_config(words, schedule="constant", steps=8)
    run.start(long, small_config(words, schedule="constant", steps=13), ignore_report, never)
    run.start(short, config, ignore_report, never)
    before = contents(short)
    assert "extended_at" not in json.loads(before["config.json"])  # as in older runs
    result = run.extend(short, 5, ignore_report, never)
    assert result == run.resume(short, ignore_report, never) == run.resume(long, ignore_report, never)
    arrays, expected = (checkpoint.decode(contents(one)["checkpoint.safetensors"], "")[0] for one in (short, long))
    assert arrays.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(arrays[name], value, err_msg=name)
    assert contents(short)["metrics.jsonl"].startswith(before["metrics.jsonl"])
    assert run.read_config(short).extended_at == (8,)


def test_the_options_of_an_extended_run_are_options_of_the_command(words: Path) -> None:
    config = small_config(words, steps=8)
    assert options_of(config.extended(5)) == options_of(config) | {"--steps": "13"}


def test_the_learning_rate_is_that_of_a_run_with_more_steps(words: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run.start(out, small_config(words, schedule="cosine", steps=5), ignore_report, never)
    reports: list[run.Report] = []
    run.extend(out, 5, reports.append, never)
    update = reports[0]["diagnostics"]["updates"]["output.weight"]
    weight = run.load(out).network.parameters["output.weight"]
    rate = 0.01 * 0.5 * (1 + np.cos(np.pi * 5 / 10))  # not 0, as at the end of the first 5 steps
    assert update["update"] == pytest.approx(rate * update["gradient"] / weight.std(), rel=0.2)


@pytest.mark.parametrize("interrupted", ["step", "remove", "write", "open_metrics"])
def test_an_interrupted_extension_is_resumed(
    interrupted: str, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(words, steps=6)
    for name in ("whole", "killed"):
        run.start(tmp_path / name, config, ignore_report, never)
    run.extend(tmp_path / "whole", 4, ignore_report, never)
    if interrupted == "step":
        with pytest.raises(run.Stopped):
            run.extend(tmp_path / "killed", 4, ignore_report, always)
    else:
        method = getattr(RunDirectory, interrupted)

        def killed_after(*arguments: object) -> None:
            method(*arguments)
            raise KeyboardInterrupt

        monkeypatch.setattr(RunDirectory, interrupted, killed_after)
        with pytest.raises(KeyboardInterrupt):
            run.extend(tmp_path / "killed", 4, ignore_report, never)
        monkeypatch.undo()
    run.resume(tmp_path / "killed", ignore_report, never)
    if interrupted == "remove":  # the run was not extended yet, and got its result again
        run.extend(tmp_path / "killed", 4, ignore_report, never)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_runs_that_cannot_be_extended(words: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(run.Stopped):
        run.start(out, small_config(words, steps=6), ignore_report, always)
    with pytest.raises(ValueError, match=r"--extend needs a complete run, got one after step 1 of 6\. Pass --resume"):
        run.extend(out, 5, ignore_report, never)
    run.resume(out, ignore_report, never)
    before = contents(out)
    with pytest.raises(ValueError, match=r"--extend: a number of steps from 1 to 999999999994, got 1000000000000\."):
        run.extend(out, 10**12, ignore_report, never)
    words.unlink()
    with pytest.raises(ValueError, match="which does not exist"):
        run.extend(out, 5, ignore_report, never)
    assert contents(out) == before


def test_a_checkpoint_of_another_length_is_refused(words: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run.start(out, small_config(words, steps=4), ignore_report, never)
    (out / "result.json").unlink()
    for change in ({"steps": 9}, {"steps": 9, "extended_at": [5]}, {"steps": 9, "extended_at": [4], "seed": 1}):
        config = json.loads((out / "config.json").read_bytes())
        (out / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ValueError, match=r"the checkpoint belongs to another config\.json"):
            run.resume(out, ignore_report, never)
        (out / "config.json").write_text(json.dumps(config))
    (out / "config.json").write_text(json.dumps(config | {"extended_at": [4]}))
    with pytest.raises(ValueError, match=r"config\.json is not of this version of truenorm"):
        run.resume(out, ignore_report, never)
