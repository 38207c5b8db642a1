"""Runs: the same bits for one seed, however often they are stopped; damaged and mismatched files are refused."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import WORDS, always, contents, ignore_report, never, small_config
from safetensors.numpy import save

from truenorm.lab import checkpoint, run
from truenorm.lab.directory import RunDirectory

# ---- the same bits ----


def test_two_runs_with_one_seed_are_equal_to_the_bit(words: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        run.start(tmp_path / name, small_config(words), ignore_report, never)
    run.start(tmp_path / "other", small_config(words, seed=1), ignore_report, never)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert contents(tmp_path / "one")["metrics.jsonl"] != contents(tmp_path / "other")["metrics.jsonl"]


@pytest.mark.parametrize("options", [{}, {"optimizer": "sgd", "momentum": 0.9}, {"norm": "layer", "steps": 250}])
def test_stopping_and_resuming_does_not_change_a_run(words: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    config = small_config(words, **options)
    run.start(tmp_path / "whole", config, ignore_report, never)
    steps = iter(range(10**6))

    def every_seventh_step() -> bool:
        return next(steps) % 7 == 6

    with pytest.raises(run.Stopped):
        run.start(tmp_path / "parts", config, ignore_report, every_seventh_step)
    for _ in range(100):
        try:
            run.resume(tmp_path / "parts", ignore_report, every_seventh_step)
            break
        except run.Stopped:
            pass
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_killing_and_resuming_does_not_change_a_run(words: Path, tmp_path: Path) -> None:
    options = ["--data", str(words), "--hidden", "8", "--steps", "400", "--dropout", "0.1", "--lr", "0.01"]
    # Save checkpoints half of the time, so that the process is killed before, between and during checkpoints.
    often = "from truenorm.lab import run; run.CHECKPOINT_SECONDS = 0; run.CHECKPOINT_SHARE = 1"
    start = f"{often}; from truenorm.cli import main; main()"
    command = [sys.executable, "-c", start, "train"]
    subprocess.run([*command, *options, "--out", str(tmp_path / "whole")], check=True, capture_output=True)
    killed = 0
    arguments = [*options, "--out", str(tmp_path / "parts")]
    for delay in (0, 0.001, 0.005, 0.02, 0.05, 60):  # after the first checkpoint of this process
        before = _checkpoint_time(tmp_path / "parts")
        process = subprocess.Popen([*command, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and _checkpoint_time(tmp_path / "parts") == before:
            time.sleep(0.0005)
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            process.kill()
            killed += 1
        process.wait()
        arguments = ["--resume", "--out", str(tmp_path / "parts")]
        if (tmp_path / "parts" / "result.json").exists():
            break
    assert killed
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def _checkpoint_time(out: Path) -> int | None:
    try:
        return (out / run.CHECKPOINT).stat().st_mtime_ns
    except FileNotFoundError:
        return None


def test_ctrl_c_saves_the_run_and_says_how_to_resume(words: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "truenorm", "train", "--data", str(words), "--steps", "1000000", "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not (out / "metrics.jsonl").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"truenorm train --resume --out {out}" in message
    assert run.load(out).step > 0


def test_metrics_after_the_checkpoint_are_removed(words: Path, tmp_path: Path) -> None:
    run.start(tmp_path / "whole", small_config(words, steps=5), ignore_report, never)
    whole = (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    for rest in (b'{"step": 2', b'{"step": 2}\n', b"\xff\0\n\n", b"[" * 10_000):
        out = tmp_path / "run"
        with pytest.raises(run.Stopped):
            run.start(out, small_config(words, steps=5), ignore_report, always)
        metrics = out / "metrics.jsonl"
        metrics.write_bytes(metrics.read_bytes() + rest)
        run.resume(out, ignore_report, never)
        assert metrics.read_bytes() == whole
        shutil.rmtree(out)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with RunDirectory(tmp_path) as files:
        files.lock()
        files.write("result.json", b"old")
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left") as error:
            files.write("result.json", b"new")
    assert error.value.filename == str(tmp_path / "result.json")
    assert (tmp_path / "result.json").read_bytes() == b"old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["lock", "result.json"]


# ---- errors ----


def test_runs_that_cannot_be_resumed(words: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = small_config(words)
    with pytest.raises(run.Stopped):
        run.start(out, config, ignore_report, always)
    with pytest.raises(ValueError, match=r"run: already holds a run\. Pass --resume, or another --out\."):
        run.start(out, config, ignore_report, never)
    with RunDirectory(out) as other:
        other.lock()
        with pytest.raises(ValueError, match="another process works on this run"):
            run.resume(out, ignore_report, never)
    words.write_text("\n".join([*WORDS, "ünal"]), "utf-8")
    with pytest.raises(ValueError, match="alphabet: the run was started without the character 'ü', got 'ünal'"):
        run.resume(out, ignore_report, never)
    words.write_text("\n".join(WORDS), "utf-8")
    path = out / "checkpoint.safetensors"
    whole = path.read_bytes()
    for damaged in (b"", whole[:100], b"\0" * 50, whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="the checkpoint is damaged"):
            run.resume(out, ignore_report, never)
    path.write_bytes(save({"x": np.zeros(3)}))
    with pytest.raises(ValueError, match="not a checkpoint of truenorm's lab"):
        run.resume(out, ignore_report, never)
    path.write_bytes(whole)
    words.write_text("\n".join([*WORDS[1:], "annna"]), "utf-8")  # the same alphabet
    with pytest.raises(ValueError, match="the data changed since the run was started"):
        run.resume(out, ignore_report, never)
    words.write_text("\n".join(WORDS), "utf-8")
    arrays, metadata = checkpoint.decode(path.read_bytes(), "")
    for name in ("optimizer.mean", "parameter.embed.table", "running.norm1.var"):
        rest = {one: value for one, value in arrays.items() if one != name}
        path.write_bytes(checkpoint.encode(rest, metadata))
        with pytest.raises(ValueError, match=f"checkpoint: {name} is .* in this network, got nothing"):
            run.resume(out, ignore_report, never)
        path.write_bytes(checkpoint.encode(arrays | {name: arrays[name].astype(np.float16)}, metadata))
        with pytest.raises(ValueError, match=f"checkpoint: {name} is .* in this network, got float16"):
            run.resume(out, ignore_report, never)
    path.write_bytes(whole)
    run.resume(out, ignore_report, never)
    for content in ("{}", "[]", '{"train": {}}', "[" * 100_000):
        (out / "result.json").write_text(content, "utf-8")
        with pytest.raises(ValueError, match=r"result\.json"):
            run.resume(out, ignore_report, never)
    for content in ("{}", "[]", "[" * 100_000, '{"steps": {"a": [[]]}}'):
        (out / "config.json").write_text(content, "utf-8")
        if content != "{}":  # a valid configuration: all options have defaults
            with pytest.raises(ValueError, match=r"config\.json"):
                run.resume(out, ignore_report, never)
    with pytest.raises(ValueError, match=r"not the directory of a run, it has no config\.json"):
        run.read_config(tmp_path)


def test_a_checkpoint_of_another_version_is_refused(words: Path, tmp_path: Path) -> None:
    with pytest.raises(run.Stopped):
        run.start(tmp_path / "run", small_config(words), ignore_report, always)
    path = tmp_path / "run" / "checkpoint.safetensors"
    arrays, metadata = checkpoint.decode(path.read_bytes(), "")
    for name, value in (
        ("first_inputs", 3),
        ("step", -1),
        ("mean_loss", [0.0, -1]),
        ("metrics", None),
        ("running", {"norm1": {}}),
        ("data", None),
    ):
        for changed in (metadata | {name: value}, {one: metadata[one] for one in metadata if one != name}):
            path.write_bytes(checkpoint.encode(arrays, changed))
            with pytest.raises(ValueError, match=f"the checkpoint is not of this version of truenorm .'{name}"):
                run.resume(tmp_path / "run", ignore_report, never)


def test_damaged_files_are_refused(words: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(run.Stopped):
        run.start(out, small_config(words), ignore_report, always)
    path = out / "checkpoint.safetensors"
    whole = bytearray(path.read_bytes())
    whole[-5] ^= 1  # of an array
    path.write_bytes(whole)
    with pytest.raises(ValueError, match="the checkpoint is damaged"):
        run.resume(out, ignore_report, never)
    whole[-5] ^= 1
    path.write_bytes(whole)
    run.resume(out, ignore_report, never)
    (out / "result.json").unlink()
    metrics = out / "metrics.jsonl"
    lines = metrics.read_bytes()
    for damaged in (lines.replace(b'"step": 2', b'"step": 3'), lines[:-1], b"", b"null", b"{}"):
        metrics.write_bytes(damaged)
        with pytest.raises(
            ValueError,
            match=rf"metrics\.jsonl: damaged, it does not hold the {len(lines)} bytes that were written before the "
            r"checkpoint\. Start a new run\.",
        ):
            run.resume(out, ignore_report, never)
    (out / "config.json").unlink()
    with pytest.raises(ValueError, match=r"already holds a metrics\.jsonl"):
        run.start(out, small_config(words), ignore_report, never)


@pytest.mark.parametrize("options", [{"lr": 1e300, "optimizer": "sgd"}, {"init_scale": 1e300}])
def test_a_run_that_diverges_in_its_last_step_has_no_result(
    words: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="training diverged"):
        run.start(
            tmp_path / "run",
            small_config(words, steps=1, norm="none", activation="relu", **options),
            ignore_report,
            never,
        )
    assert not (tmp_path / "run" / "result.json").exists()


def test_every_flipped_bit_of_a_checkpoint_is_detected(words: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(run.Stopped):
        run.start(out, small_config(words), ignore_report, always)
    path = out / "checkpoint.safetensors"
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    rng = np.random.default_rng(0)
    places = np.concatenate([np.arange(100), rng.integers(0, header, 300), rng.integers(0, len(whole), 200)])
    for place, bit in zip(places, rng.integers(0, 8, len(places)), strict=True):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << bit
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"checkpoint\.safetensors: [^\n]+ Start a new run\.$"):
            run.load_words(out)
    for length in (*range(0, 200, 7), *rng.integers(0, len(whole), 50)):
        path.write_bytes(whole[:length])
        with pytest.raises(
            ValueError, match=r"checkpoint\.safetensors: the checkpoint is damaged\. Start a new run\.$"
        ):
            run.load_words(out)
    path.write_bytes(whole + b"\0")
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors: the checkpoint is damaged\. Start a new run\.$"):
        run.load_words(out)


def test_a_forged_checkpoint_is_refused_in_one_line(words: Path, tmp_path: Path) -> None:
    """A digest detects damage. It does not keep anybody from writing other content with a digest of its own."""
    out = tmp_path / "run"
    with pytest.raises(run.Stopped):
        run.start(out, small_config(words), ignore_report, always)
    path = out / "checkpoint.safetensors"
    arrays, metadata = checkpoint.decode(path.read_bytes(), "")
    other_names = {f"{name}x": value for name, value in metadata["first_inputs"].items()}
    for changed, message in (
        ({"step": 61}, "the checkpoint is at step 61, but the run has 60 steps. Start a new run."),
        ({"step": 10**400}, "the checkpoint is not of this version of truenorm ('step' differs)."),
        ({"mean_loss": [10**400, 1]}, "the checkpoint is not of this version of truenorm ('mean_loss.0' differs)."),
        (
            {"first_inputs": other_names},
            "checkpoint: first_inputs has the layers ['linear1', 'output'] in this network, got "
            "['linear1x', 'outputx'].",
        ),
        ({"running": {}}, "checkpoint: no running statistics of norm1. It belongs to another network."),
    ):
        path.write_bytes(checkpoint.encode(arrays, metadata | changed))
        with pytest.raises(ValueError, match=re.escape(message) + "$"):
            run.resume(out, ignore_report, never)
    # A tensor of a type that NumPy does not have.
    entry = json.dumps({"digest": checkpoint.NO_DIGEST, "metadata": metadata})
    tensor = {"dtype": "F8_E5M2", "shape": [8], "data_offsets": [0, 8]}
    header = json.dumps({"__metadata__": {checkpoint.FORMAT: entry}, "x": tensor}).encode()
    forged = len(header).to_bytes(8, "little") + header + bytes(8)
    path.write_bytes(checkpoint.seal(forged))
    with pytest.raises(ValueError, match="the checkpoint is damaged"):
        run.resume(out, ignore_report, never)


DAMAGED_RESULT = "result.json is damaged or of another run. Delete it, and --resume writes it again."


def test_a_damaged_result_is_refused(words: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = run.start(out, small_config(words, steps=1), ignore_report, never)
    path = out / "result.json"
    whole = path.read_bytes()
    assert run.resume(out, ignore_report, never) == result
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(
            ValueError, match=r"result\.json(: damaged, not valid JSON\.| is damaged or of another run\.)"
        ):
            run.resume(out, ignore_report, never)
    run.start(tmp_path / "other", small_config(words, steps=1, seed=1), ignore_report, never)
    shutil.copy(tmp_path / "other" / "result.json", path)
    with pytest.raises(ValueError, match=re.escape(DAMAGED_RESULT)):
        run.resume(out, ignore_report, never)
    path.unlink()
    assert run.resume(out, ignore_report, never) == result
    assert path.read_bytes() == whole


@pytest.mark.parametrize("number", [str(7**500), "NaN", '"x"', "[]"])
def test_a_forged_result_is_refused_in_one_line(words: Path, tmp_path: Path, number: str) -> None:
    out = tmp_path / "run"
    result = run.start(out, small_config(words, steps=1), ignore_report, never)
    whole = checkpoint.encode_json({"digest": checkpoint.NO_DIGEST, **result}).decode()
    for old in (result["train"]["loss"], result["held_out"]["accuracy"], result["parameters"], result["steps"]):
        changed = whole.replace(f": {old}", f": {number}", 1)
        assert changed != whole
        forged = checkpoint.seal(changed.encode(), (out / "config.json").read_bytes())
        (out / "result.json").write_bytes(forged)
        with pytest.raises(ValueError, match=re.escape(DAMAGED_RESULT)):
            run.resume(out, ignore_report, never)
