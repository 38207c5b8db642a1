"""`truenorm train` and `truenorm sample` on the command line."""

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from threadpoolctl import threadpool_info

from truenorm.cli import commands, main
from truenorm.cli.train import command
from truenorm.lab.training import Trainer


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that wrong input ends with."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    printed = capsys.readouterr()
    assert stop.value.code == 2, printed
    assert printed.err.count("\n") == 1, printed.err
    assert printed.out == ""
    return printed.err


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def test_bad_input_is_one_line_and_leaves_no_directory(
    words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "run")]
    csv = write(tmp_path / "t.csv", b"a,b\n1,x\n2,y\n3,x\n4,y\n")
    for arguments, text in (
        (["--data", write(tmp_path / "empty", b"")], "needs at least two words, one a line, got 0."),
        (["--data", write(tmp_path / "one", b"word\n")], "needs at least two words, one a line, got 1."),
        (["--data", write(tmp_path / "binary", b"\xff\xfe\x00\x01")], "must be UTF-8 text"),
        (["--data", str(tmp_path / "missing")], "--data: a file, names, surnames or words, got"),
        (["--data", "surname"], "--data: a file, names, surnames or words, got"),
        (["--data", str(words), "--batch", "1"], "--batch: at least 2 with batch norm, got 1."),
        (["--data", str(words), "--norm", "group", "--groups", "3"], "groups: must divide the 100 features"),
        (["--data", str(words), "--steps", "0"], "--steps: a number >= 1, got 0."),
        (["--data", str(words), "--norm", "batsch"], "Invalid value for '--norm'"),
        (["--task", "table", "--data", csv], f"--target: --task table needs the column of {csv} to predict, got none."),
        (["--task", "table", "--data", csv, "--target", "c"], "--target: one of the columns a, b, got 'c'."),
        (["--data", str(words), "--lr", "nan"], "--lr: a finite number, got nan."),
        (["--data", str(words), "--dropout", "1"], "--dropout: a number < 1, got 1.0."),
        (["--data", str(words), "--heads", "2"], "--heads: only with --task gender, got --task words."),
        (["--data", str(words), "--ddof", "1", "--norm", "rms"], "--ddof: only with --norm batch, layer or group, got"),
        (["--data", str(words), "--momentum", "0.5", "--optimizer", "adam"], "--momentum: only with --optimizer sgd"),
        (["--data", str(words), "--hidden", "999999999999"], "--hidden: a number <= 1e+06, got 999999999999."),
        (
            ["--data", str(words), "--hidden", "1000000", "--depth", "2"],
            "got about 40,004 GB (data 0 MB, network 40,001 GB, batches ",
        ),
        (["--data", str(words), "--block", "1000000", "--hidden", "99999"], "Choose a smaller --block, --embedding,"),
        (["--data", str(words), "--depth", "1000000", "--hidden", "1"], "--depth: a number <= 1000, got 1000000."),
        (["--task", "gender", "--depth", "2"], "--depth: only with --task words or table, got --task gender."),
        (["--task", "gender", "--data", "surnames"], "--data: --task gender has its own data, got 'surnames'."),
        (
            ["--task", "table", "--target", "y"],
            "--data: --task table needs a CSV file with a header, or students, got none.",
        ),
        (["--task", "table", "--data", "student", "--target", "y"], "--data: a CSV file or students, got "),
        (["--task", "table", "--data", "surnames", "--target", "y"], "--data: a CSV file or students, got surnames"),
        (
            ["--task", "table", "--data", "students", "--target", "age"],
            "--target: one of the columns cgpa, iq, placed, got 'age'.",
        ),
        (["--data", "students"], "--data: students is a table, got --task words. Use --task table."),
        (["--task", "gender", "--data", "students"], "--data: --task gender has its own data, got 'students'."),
        (
            ["--task", "gender", "--max-length", "3"],
            "--max-length: at least 11, the length of the longest word, got 3.",
        ),
        (["--task", "gender", "--embedding", "5"], "--heads: must divide --embedding 5, got 2."),
    ):
        assert text in error_of(capsys, "train", *arguments, *out), arguments
        assert not (tmp_path / "run").exists()


def test_an_empty_name_is_not_the_current_directory(
    words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for arguments in (["--data", str(words)], ["--resume"]):
        assert error_of(capsys, "train", *arguments, "--out", "") == (
            "truenorm: Invalid value for '--out': must be the name of a directory, got ''. "
            "See 'truenorm train --help'.\n"
        )
    assert error_of(capsys, "train", "--data", "", "--out", "run") == (
        "truenorm: --data: must be the name of a file, names, surnames, words or students, got ''.\n"
    )
    assert list(Path().iterdir()) == []


def test_training_that_diverges_says_so(words: Path, tmp_path: Path) -> None:
    options = ["--lr", "1e30", "--norm", "none", "--activation", "relu", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-m", "truenorm", "train", "--data", str(words), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "training diverged, the loss is" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize("package", ["pydantic", "safetensors", "threadpoolctl"])
def test_a_missing_extra_is_named(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from truenorm.cli import main; main(['train', '--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"needs the package {package!r}. Install it: pip install 'truenorm[lab]'." in done.stderr


def test_matrix_products_use_one_thread(words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    step = Trainer.train_step

    def train_step(trainer: Trainer) -> float:
        threads.update(one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas")
        return step(trainer)

    monkeypatch.setattr(Trainer, "train_step", train_step)
    options = ["--data", str(words), "--steps", "2", "--out", str(tmp_path / "run")]
    assert CliRunner().invoke(commands, ["train", *options]).exit_code == 0
    assert threads <= {1}  # empty where NumPy has a BLAS that threadpoolctl does not know


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_advice_fits_the_run(words: Path, tmp_path: Path, norm: str) -> None:
    def advice(name: str, *options: str) -> str:
        arguments = ["train", "--norm", norm, *options, "--out", str(tmp_path / name)]
        shown = CliRunner().invoke(commands, arguments).output
        return next(line for line in shown.splitlines() if line.startswith("No better than")).split("). ")[1]

    by_heart = advice("by heart", "--data", str(words), "--steps", "300")
    assert by_heart == ("It has only learned the training examples: try more of them, fewer --steps, or --dropout 0.3.")
    early = advice("early", "--steps", "1", "--lr", "1e-9")
    assert early.startswith(
        "Try a lower --lr, another" if norm == "batch" else "Try a lower --lr, --norm batch, another"
    )


def test_a_run_that_ends_no_better_than_guessing_says_so(tmp_path: Path) -> None:
    arguments = ["train", "--norm", "none", "--lr", "50", "--steps", "20"]
    shown = CliRunner().invoke(commands, [*arguments, "--out", str(tmp_path / "bad")])
    assert shown.exit_code == 0, shown.output
    lines = [line for line in shown.output.splitlines() if line.startswith("No better than always predicting")]
    assert len(lines) == 1
    assert lines[0].startswith("No better than always predicting the class frequencies (held-out loss 2.")
    assert lines[0].endswith("Try a lower --lr, --norm batch, another --init-scale, or more --steps.")
    assert "To see the run: truenorm report" in shown.output
    assert "truenorm sample" not in shown.output  # the words of such a network mean nothing
    again = CliRunner().invoke(commands, ["train", "--resume", "--out", str(tmp_path / "bad")])
    assert lines[0] in again.output
    good = CliRunner().invoke(commands, ["train", "--steps", "300", "--out", str(tmp_path / "good")])
    assert "No better than" not in good.output
    assert "baseline: loss 2." in good.output
    assert f"To generate words: truenorm sample {tmp_path / 'good'}" in good.output


def test_the_help_of_train_is_in_groups() -> None:
    shown = CliRunner().invoke(commands, ["train", "--help"]).output
    heads = [line for line in shown.splitlines() if re.fullmatch(r" {0,2}\w+[ \w]*:", line)]
    assert heads == [
        "Data:",
        "Network:",
        "Norm:",
        "Optimization:",
        "Output:",
        "Other:",
        "  Examples to try first:",
        "  More examples:",
    ]
    groups = dict(
        zip(heads, re.split("|".join(f"^{head}$" for head in heads), shown, flags=re.MULTILINE)[1:], strict=True)
    )
    for head, option in {
        "Data:": "--task",
        "Network:": "--hidden",
        "Norm:": "--norm-at",
        "Optimization:": "--lr",
    }.items():
        assert f"  {option} " in groups[head]
    named = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", shown, re.MULTILINE))
    assert named == {max(one.opts, key=len) for one in command.get_params(click.Context(command))}


def test_extending_on_the_command_line(words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    for options in (["--data", str(words), "--steps", "20"], ["--extend", "10"]):
        shown = CliRunner().invoke(commands, ["train", *options, "--out", out])
        assert shown.exit_code == 0, shown.output
    assert "step 30 of 30: loss" in shown.output
    assert "30 steps, " in shown.output
    for options, text in (
        (["--extend", "5", "--resume"], "Give --resume or --extend, not both."),
        (["--extend", "5", "--lr", "1"], "--extend: takes no other options than --out and --watch, got --lr."),
        (["--extend", "0"], "Invalid value for '--extend'"),
    ):
        assert text in error_of(capsys, "train", *options, "--out", out)
    assert "not the directory of a run" in error_of(capsys, "train", "--extend", "5", "--out", str(tmp_path / "none"))


def test_the_held_out_loss_of_a_sample_has_another_name(tmp_path: Path) -> None:
    arguments = ["train", "--steps", "3", "--hidden", "4", "--data"]
    few = CliRunner().invoke(commands, [*arguments, "names", "--out", str(tmp_path / "names")]).output
    assert "  held-out sample 3." in few
    path = tmp_path / "words.txt"
    path.write_text("anna\nbob\ncarla\n")
    all_of_them = CliRunner().invoke(commands, [*arguments, str(path), "--out", str(tmp_path / "few")]).output
    assert "held-out sample" not in all_of_them
    shown, result = re.findall(r"held out:? (?:loss )?(\d+\.\d+)", all_of_them)[-2:]
    assert shown == result


def test_the_commands_train_and_sample(
    words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "run")
    found = CliRunner().invoke(commands, ["train", "--data", str(words), "--steps", "20", "--out", out])
    assert found.exit_code == 0, found.output
    assert "held out: loss" in found.output
    assert "step 20 of 20: loss" in found.output
    for statistics in ("reestimated", "running"):
        drawn = CliRunner().invoke(commands, ["sample", out, "--count", "5", "--statistics", statistics])
        assert len(drawn.stdout.splitlines()) == 5
    monkeypatch.setattr("truenorm.cli.sample.WORDS_AT_ONCE", 2)
    assert len(CliRunner().invoke(commands, ["sample", out, "--count", "5"]).stdout.splitlines()) == 5
    monkeypatch.undo()
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
    assert "takes no other options than --out and --watch, got --steps." in error_of(
        capsys, "train", "--resume", "--steps", "9", "--out", out
    )
