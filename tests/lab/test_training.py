"""Runs: the same bits for one seed, however often they are stopped; what is wrong with them, in one line."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from truenorm.cli import commands
from truenorm.lab import checkpoint, data, run, table
from truenorm.lab.config import Config, suited
from truenorm.lab.data import Alphabet, Batches, Examples
from truenorm.lab.sampling import generate, reestimate
from truenorm.lab.training import Trainer, prepare

WORDS = ["anna", "bob", "carla", "dave", "eve", "frank", "grace", "heidi", "ivan", "judy", "olivia", "peggy"]
FILES = ("config.json", "metrics.jsonl", "checkpoint.safetensors", "result.json")


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text("\n".join(WORDS) + "\n", "utf-8")
    return path


def small(words: Path, **options: Any) -> Config:
    given = {"hidden": 8, "steps": 60, "dropout": 0.1, "optimizer": "adam", "rate": 0.01} | options
    return Config(data=str(words), **given)


def no_report(_: Any) -> None:
    pass


def never() -> bool:
    return False


def contents(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in FILES}


# ---- the same bits ----


def test_two_runs_with_one_seed_are_equal_to_the_bit(words: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        run.start(tmp_path / name, small(words), no_report, never)
    run.start(tmp_path / "other", small(words, seed=1), no_report, never)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert contents(tmp_path / "one")["metrics.jsonl"] != contents(tmp_path / "other")["metrics.jsonl"]


@pytest.mark.parametrize("options", [{}, {"optimizer": "sgd", "momentum": 0.9}, {"norm": "layer", "steps": 250}])
def test_a_run_that_is_stopped_again_and_again_ends_as_one_that_is_not(
    words: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    config = small(words, **options)
    run.start(tmp_path / "whole", config, no_report, never)
    steps = iter(range(10**6))

    def stop() -> bool:
        return next(steps) % 7 == 6

    with pytest.raises(run.Stopped):
        run.start(tmp_path / "parts", config, no_report, stop)
    for _ in range(100):
        try:
            run.resume(tmp_path / "parts", no_report, stop)
            break
        except run.Stopped:
            pass
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_batches_come_from_the_step_alone_and_are_new_in_every_part_of_a_run() -> None:
    x = np.arange(20_000)[:, None]
    batches, again = (Batches(Examples(x, x[:, 0]), 32, seed=5) for _ in range(2))
    steps = [0, 1, batches.steps - 1, batches.steps, 3 * batches.steps + 7]
    found = {step: batches[step].x.copy() for step in steps}
    for step in reversed(steps):
        np.testing.assert_array_equal(again[step].x, found[step])
        np.testing.assert_array_equal(again[step].x[:, 0], again[step].targets)
    assert len({value.tobytes() for value in found.values()}) == len(steps)
    assert not np.array_equal(Batches(Examples(x, x[:, 0]), 32, seed=6)[0].x, found[0])
    seen = np.unique(np.concatenate([batches[step].x for step in range(40 * batches.steps)]))
    assert len(seen) > 0.99 * len(x)


def test_a_run_that_is_killed_at_any_moment_ends_as_one_that_is_not(words: Path, tmp_path: Path) -> None:
    options = ["--data", str(words), "--hidden", "8", "--steps", "400", "--dropout", "0.1", "--rate", "0.01"]
    # Checkpoints every 0 seconds, that is at every report, so that killing falls before, between and into them.
    start = "from truenorm.lab import run; run.BETWEEN = 0; from truenorm.cli import main; main()"
    command = [sys.executable, "-c", start, "train"]
    subprocess.run([*command, *options, "--out", str(tmp_path / "whole")], check=True, capture_output=True)
    killed = 0
    words_of = [*options, "--out", str(tmp_path / "parts")]
    for patience in (0.55, 0.65, 0.75, 0.85, 0.95, 60):
        process = subprocess.Popen([*command, *words_of], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            killed += 1
        process.wait()
        if (tmp_path / "parts" / "config.json").exists():
            words_of = ["--resume", "--out", str(tmp_path / "parts")]
        if (tmp_path / "parts" / "result.json").exists():
            break
    assert killed
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_ctrl_c_saves_and_says_how_to_go_on(words: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "truenorm", "train", "--data", str(words), "--steps", "1000000", "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not (out / "metrics.jsonl").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"truenorm train --resume --out {out}" in said
    assert run.load(out).step > 0


def test_a_torn_last_line_of_the_metrics_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste', "utf-8")
    checkpoint.truncate_metrics(path, 2)
    assert path.read_text("utf-8") == '{"step": 1}\n{"step": 2}\n'


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    checkpoint.write_json(path, {"old": 1})

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.write_json(path, {"new": 2})
    assert json.loads(path.read_text("utf-8")) == {"old": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


# ---- learning ----


@pytest.mark.parametrize("norm", ["none", "batch", "layer", "rms", "group"])
def test_a_network_learns_a_few_words_by_heart(words: Path, norm: Any) -> None:
    config = small(words, norm=norm, steps=1500, hidden=32, embedding=8, dropout=0.0, rate=0.01, block=4)
    trainer = Trainer(config, prepare(config))
    before = trainer.score(trainer.material.train).loss
    for _ in range(config.steps):
        trainer.advance()
    assert before > 2.0
    assert trainer.score(trainer.material.train).loss < 0.45  # which first letter comes is not to be known


def test_the_gender_of_names_is_learned_better_than_by_guessing() -> None:
    config = Config(task="gender", embedding=8, hidden=16, steps=600, optimizer="adam", rate=0.01)
    trainer = Trainer(config, prepare(config))
    for _ in range(config.steps):
        trainer.advance()
    share = trainer.material.held_out.targets.mean()
    guessing = -share * np.log(share) - (1 - share) * np.log(1 - share)
    assert trainer.score(trainer.material.held_out).loss < 0.9 * guessing


def test_the_census_lists() -> None:
    names, genders = data.first_names()
    assert len(names) == len(set(names)) == 5163
    assert [genders[names.index(name)] for name in ("mary", "john", "kim", "robin", "leslie")] == [0, 1, 0, 0, 0]
    assert len(data.surnames()) == 88799
    assert data.surnames()[0] == "smith"


def test_tables_of_classes_and_of_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal([100.0, 0.001], [50.0, 0.002], (300, 2))
    big = np.where(x[:, 0] / 50 + x[:, 1] / 0.002 > 2.5, "big", "small")
    for name, target in (("classes", big), ("numbers", x[:, 0] / 50 - x[:, 1] / 0.002)):
        path = tmp_path / f"{name}.csv"
        rows = [f"{a},{t},{b}" for (a, b), t in zip(x, target, strict=True)]
        path.write_text("\n".join(["a,y,b", *rows]), "utf-8")
        config = Config(task="table", data=str(path), target="y", hidden=16, steps=800, rate=0.05)
        trainer = Trainer(config, prepare(config))
        for _ in range(config.steps):
            trainer.advance()
        score = trainer.score(trainer.material.held_out)
        if name == "classes":
            assert trainer.material.names == ("big", "small")
            assert score.accuracy is not None
            assert score.accuracy > 0.9
        else:
            assert score.accuracy is None
            assert score.loss < 0.2  # of the variance
            assert score.error == pytest.approx(np.sqrt(score.loss) * trainer.material.unit)


def test_numbers_of_any_size_are_learned(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(2), tmp_path / "houses.csv"
    size = rng.uniform(30, 300, 300)
    rows = [f"{one:.1f},{2000 * one + rng.normal(0, 9000):.0f}" for one in size]
    path.write_text("\n".join(["sqm,price", *rows]), "utf-8")
    config = suited({"task": "table", "data": str(path), "target": "price", "steps": 500})
    trainer = Trainer(config, prepare(config))
    for _ in range(config.steps):
        trainer.advance()
    score = trainer.score(trainer.material.held_out)
    assert score.loss < 0.05
    assert score.error is not None
    assert 5_000 < score.error < 25_000  # in the unit of the price


def test_raw_columns_of_different_sizes_need_a_norm(tmp_path: Path) -> None:
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    wine, path = datasets.load_wine(), tmp_path / "wine.csv"
    rows = [[*map(repr, map(float, x)), wine.target_names[y]] for x, y in zip(wine.data, wine.target, strict=True)]
    header = [name.replace("/", " of ") for name in wine.feature_names]
    path.write_text("\n".join(",".join(row) for row in ([*header, "class"], *rows)), "utf-8")
    right = {}
    for norm, standardize in (("none", False), ("batch", False), ("none", True)):
        config = suited(
            {
                "task": "table",
                "data": str(path),
                "target": "class",
                "norm": norm,
                "standardize": standardize,
                "steps": 400,
            }
        )
        trainer = Trainer(config, prepare(config))
        for _ in range(config.steps):
            trainer.advance()
        right[norm, standardize] = trainer.score(trainer.material.held_out).accuracy or 0
    assert trainer.material.names == ("class_0", "class_1", "class_2")
    assert right["none", False] < 0.8
    assert min(right["batch", False], right["none", True]) > 0.9


def test_inputs_are_standardised_over_the_training_set_alone() -> None:
    train, other = np.random.default_rng(1).normal(7, 3, (2500, 4)), np.full((3, 4), 7.0)
    found, moved = table.standardized(train, other)
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(found.std(0), 1, rtol=1e-12)
    np.testing.assert_allclose(moved, (other - train.mean(0)) / train.std(0), rtol=1e-12)
    assert not table.standardized(np.full((5, 1), 3.0))[0].any()


# ---- instruments ----


def test_instruments_tell_saturation_updates_drift_and_how_far_running_statistics_are_behind(words: Path) -> None:
    config = small(words, dropout=0.0, optimizer="sgd", rate=0.1)
    trainer = Trainer(config, prepare(config))
    trainer.advance()
    first = trainer.observe()
    assert set(first["drift"].values()) == {0.0}
    assert sum(first["layers"]["act1"]["histogram"]) == len(trainer.material.held_out) * 8
    assert 0 <= first["layers"]["act1"]["saturated"] < 1
    gradient = trainer.network.gradients["output.weight"]
    weight = trainer.network.parameters["output.weight"]
    assert first["updates"]["output.weight"]["update"] == pytest.approx(0.1 * gradient.std() / weight.std(), rel=1e-5)
    assert first["behind"]["norm1"] > 0.1  # running statistics start at 0 and 1
    trainer.network.parameters["norm1.weight"] *= 50
    for _ in range(60):
        trainer.advance()
    later = trainer.observe()
    assert later["layers"]["act1"]["saturated"] > 0.5
    assert later["drift"]["output"] > 0.1
    assert later["behind"]["norm1"] < first["behind"]["norm1"]


# ---- sampling ----


def test_words_are_generated_from_running_and_from_reestimated_statistics(words: Path) -> None:
    config = small(words, steps=800, hidden=32, embedding=8, dropout=0.0, block=4)
    trainer = Trainer(config, prepare(config))
    for _ in range(config.steps):
        trainer.advance()
    material = trainer.material
    assert material.alphabet is not None

    def draw(seed: int, temperature: float) -> list[str]:
        rng = np.random.default_rng(seed)
        assert material.alphabet is not None
        return generate(trainer.network, material.alphabet, 4, rng, count=50, temperature=temperature)

    assert draw(0, 1.0) == draw(0, 1.0) != draw(1, 1.0)
    assert len(set(draw(0, 0.0))) == 1
    assert len(set(draw(0, 1.0)) & set(WORDS)) > 3
    reestimate(trainer.network, material.train)
    assert len(set(draw(0, 1.0)) & set(WORDS)) > 3


def test_blocks_of_any_alphabet() -> None:
    alphabet = Alphabet.of(["zoë", "東京"])
    found = data.blocks(["zoë", "東京"], alphabet, 3)
    assert len(found) == 4 + 3
    assert [alphabet.decode([n for n in row if n]) for row in found.x] == ["", "z", "zo", "zoë", "", "東", "東京"]


# ---- what is wrong, in one line ----


def refused(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "truenorm", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stdout == ""
    return done.stderr


def written(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def test_bad_input_is_one_line_and_leaves_no_directory(words: Path, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "run")]
    csv = written(tmp_path / "t.csv", b"a,b\n1,x\n2,y\n3,x\n4,y\n")
    for arguments, text in (
        (["--data", written(tmp_path / "empty", b"")], "at least two words, one a line, got 0."),
        (["--data", written(tmp_path / "one", b"word\n")], "at least two words, one a line, got 1."),
        (["--data", written(tmp_path / "binary", b"\xff\xfe\x00\x01")], "text in UTF-8"),
        (["--data", str(tmp_path / "missing")], "--data: a file, or names, or surnames, got"),
        (["--data", "surname"], "--data: a file, or names, or surnames, got"),
        (["--data", str(words), "--batch", "1"], "--batch: at least 2 with batch norm, got 1."),
        (["--data", str(words), "--norm", "group", "--groups", "3"], "groups: divide the 100 features"),
        (["--data", str(words), "--steps", "0"], "--steps: a number >= 1, got 0."),
        (["--data", str(words), "--norm", "batsch"], "Invalid value for '--norm'"),
        (["--task", "table", "--data", csv], "--target: the column to predict, got none."),
        (["--task", "table", "--data", csv, "--target", "c"], "--target: one of the columns a, b, got 'c'."),
        (["--data", str(words), "--rate", "nan"], "--rate: a finite number, got nan."),
        (["--data", str(words), "--dropout", "1"], "--dropout: a number < 1, got 1.0."),
        (["--data", str(words), "--heads", "2"], "--heads: only with --task gender, got --task words."),
        (["--data", str(words), "--ddof", "1", "--norm", "rms"], "--ddof: only with --norm batch, layer or group, got"),
        (["--data", str(words), "--momentum", "0.5", "--optimizer", "adam"], "--momentum: only with --optimizer sgd"),
        (["--data", str(words), "--hidden", "999999999999"], "--hidden: a number <= 1e+06, got 999999999999."),
        (["--data", str(words), "--hidden", "1000000", "--depth", "2"], "not enough memory"),
        (["--task", "gender", "--depth", "2"], "--depth: only with --task words or table, got --task gender."),
        (["--task", "gender", "--data", "surnames"], "--data: names, for --task gender, got 'surnames'."),
        (["--task", "table", "--target", "y"], "--data: a CSV file with a header, got none."),
        (["--task", "gender", "--extent", "3"], "--extent: at least the 11 characters of the longest word, got 3."),
        (["--task", "gender", "--embedding", "5"], "--heads: divides the 5 of --embedding, got 2."),
    ):
        assert text in refused("train", *arguments, *out), arguments
        assert not (tmp_path / "run").exists()


def test_runs_that_cannot_be_continued(words: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = small(words)
    with pytest.raises(run.Stopped):
        run.start(out, config, no_report, lambda: True)
    with pytest.raises(
        ValueError, match=r"a new directory, got one with a run in it\. Pass --resume, or another --out\."
    ):
        run.start(out, config, no_report, never)
    with checkpoint.locked(out), pytest.raises(ValueError, match="got one in use"):
        run.resume(out, no_report, never)
    words.write_text("\n".join([*WORDS, "ünal"]), "utf-8")
    with pytest.raises(ValueError, match="alphabet: characters that the run was started with, got 'ü' in 'ünal'"):
        run.resume(out, no_report, never)
    words.write_text("\n".join(WORDS), "utf-8")
    path = out / "checkpoint.safetensors"
    whole = path.read_bytes()
    for damaged in (b"", whole[:100], b"\0" * 50, whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="got a damaged file"):
            run.resume(out, no_report, never)
    from safetensors.numpy import save

    path.write_bytes(save({"x": np.zeros(3)}))
    with pytest.raises(ValueError, match="got another one's"):
        run.resume(out, no_report, never)
    path.write_bytes(whole)
    words.write_text("\n".join([*WORDS[1:], "annna"]), "utf-8")  # the same alphabet
    with pytest.raises(ValueError, match="the data that the run was started with, got other data"):
        run.resume(out, no_report, never)
    words.write_text("\n".join(WORDS), "utf-8")
    arrays, facts = checkpoint.load(path)
    for name in ("optimizer.mean", "parameter.embed.table", "running.norm1.var"):
        checkpoint.save(path, {one: value for one, value in arrays.items() if one != name}, facts)
        with pytest.raises(ValueError, match=f"checkpoint: {name} of shape"):
            run.resume(out, no_report, never)
        checkpoint.save(path, arrays | {name: arrays[name].astype(np.float16)}, facts)
        with pytest.raises(ValueError, match=f"checkpoint: {name} of shape"):
            run.resume(out, no_report, never)
    path.write_bytes(whole)
    run.resume(out, no_report, never)
    for content in ("{}", "[]", '{"train": {}}', "[" * 100_000):
        (out / "result.json").write_text(content, "utf-8")
        with pytest.raises(ValueError, match=r"result\.json"):
            run.resume(out, no_report, never)
    for content in ("{}", "[]", "[" * 100_000, '{"steps": {"a": [[]]}}'):
        (out / "config.json").write_text(content, "utf-8")
        if content != "{}":  # which is the notes' network
            with pytest.raises(ValueError, match=r"config\.json"):
                run.resume(out, no_report, never)
    with pytest.raises(ValueError, match=r"a run's directory, got one without config\.json"):
        run.read_config(tmp_path)


def test_training_that_diverges_says_so(words: Path, tmp_path: Path) -> None:
    options = ["--rate", "1e30", "--norm", "none", "--activation", "relu", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-m", "truenorm", "train", "--data", str(words), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "a finite loss, got" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize("package", ["pydantic", "safetensors"])
def test_a_missing_extra_is_named(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from truenorm.cli import main; main(['train', '--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"needs the package {package!r}. Install it: pip install 'truenorm[lab]'." in done.stderr


def test_a_checkpoint_of_another_version_is_refused(words: Path, tmp_path: Path) -> None:
    with pytest.raises(run.Stopped):
        run.start(tmp_path / "run", small(words), no_report, lambda: True)
    path = tmp_path / "run" / "checkpoint.safetensors"
    arrays, facts = checkpoint.load(path)
    for name, value in (("first", 3), ("step", -1), ("losses", [0.0, -1]), ("running", {"norm1": {}}), ("data", None)):
        for changed in (facts | {name: value}, {one: facts[one] for one in facts if one != name}):
            checkpoint.save(path, arrays, changed)
            with pytest.raises(ValueError, match=f"a checkpoint of this version, got one with another '{name}"):
                run.resume(tmp_path / "run", no_report, never)


def test_damage_is_noticed(words: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(run.Stopped):
        run.start(out, small(words), no_report, lambda: True)
    path = out / "checkpoint.safetensors"
    whole = bytearray(path.read_bytes())
    whole[-5] ^= 1  # of an array
    path.write_bytes(whole)
    with pytest.raises(ValueError, match="got a damaged file"):
        run.resume(out, no_report, never)
    whole[-5] ^= 1
    path.write_bytes(whole)
    run.resume(out, no_report, never)
    (out / "result.json").unlink()
    metrics = out / "metrics.jsonl"
    lines = metrics.read_text("utf-8").splitlines()
    metrics.write_text("\n".join([lines[0], "{", *lines[2:]]), "utf-8")
    with pytest.raises(ValueError, match="got a damaged line 2"):
        run.resume(out, no_report, never)
    (out / "config.json").unlink()
    with pytest.raises(ValueError, match=r"got one with a metrics\.jsonl"):
        run.start(out, small(words), no_report, never)


@pytest.mark.parametrize("options", [{"rate": 1e300, "optimizer": "sgd"}, {"gain": 1e300}])
def test_a_run_that_its_last_step_destroys_has_no_result(words: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Training diverged"):
        run.start(
            tmp_path / "run",
            small(words, steps=1, norm="none", activation="relu", **options),
            no_report,
            never,
        )
    assert not (tmp_path / "run" / "result.json").exists()


def test_what_is_wrong_with_a_table_is_told_with_its_line(tmp_path: Path) -> None:
    rows = "\n".join(f"{i},{i % 2},{i / 7}" for i in range(50))
    for content, text in (
        ("", "a header and rows, got an empty file"),
        ("a,y,b\n", "at least four rows under the header, got 0"),
        ("a,y,a\n" + rows, "columns of different names, got 'a' twice"),
        ("y\n1\n2\n3\n4\n", "at least one column beside 'y', got none"),
        ("a,y,b\n\n\n" + rows + "\n1,1\n", "3 cells in each row, got 2 in line 54"),
        ("a,y,b\n\n" + rows + "\n1,1,x\n", "a finite number in column 'b', got 'x' in line 53"),
        ("a,y,b\n" + rows + "\n1,,1\n", "a class or a number in column 'y', got '' in line 52"),
        ("a,y,b\n" + rows + "\n1,one,1\n", "a finite number, as in most rows, in column 'y', got 'one' in line 52"),
        ("a,y,b\n" + "1,2,3\n" * 9, "at least two classes, got '2' alone"),
        ("a,y,b\n" + "1" * 200_000 + ",2,3\n", "a CSV, got one that cannot be read"),
    ):
        path = tmp_path / "table.csv"
        path.write_text(content, "utf-8")
        with pytest.raises(ValueError, match=text):
            table.read_csv(path, "y")
    path.write_text("a,y\n1,1\n2,1.0\n3,2\n4,2\n", "utf-8")
    assert table.read_csv(path, "y").classes == ("1", "2")


def test_the_commands_train_and_sample(words: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    found = CliRunner().invoke(commands, ["train", "--data", str(words), "--steps", "20", "--out", out])
    assert found.exit_code == 0, found.output
    assert "held out: loss" in found.output
    assert "step 20 of 20: loss" in found.output
    for statistics in ("reestimated", "running"):
        drawn = CliRunner().invoke(commands, ["sample", out, "--count", "5", "--statistics", statistics])
        assert len(drawn.output.splitlines()) == 5
    words.rename(words.with_suffix(".gone"))
    assert CliRunner().invoke(commands, ["sample", out, "--count", "5"]).output == drawn.output  # needs no data
    words.with_suffix(".gone").rename(words)
    shown = CliRunner().invoke(
        commands, ["train", "--data", str(words), "--steps", "20", "--watch", "--out", out + "2"]
    )
    assert shown.exit_code == 0, shown.output
    assert "saturated" in shown.output
    assert "norm1" in shown.output
    assert "…" not in shown.output  # 80 columns are enough
    assert "no other option" in refused("train", "--resume", "--steps", "9", "--out", out)
