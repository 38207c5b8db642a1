"""`truenorm predict`: CSV in, CSV out."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from truenorm.cli import commands, main
from truenorm.lab import run, table
from truenorm.lab.layers import ForwardContext
from truenorm.lab.training import Trainer


def train(out: Path, *options: str) -> None:
    done = CliRunner().invoke(commands, ["train", *options, "--out", str(out)])
    assert done.exit_code == 0, done.output


def predicted(*arguments: str, stdin: str = "") -> list[dict[str, str]]:
    done = CliRunner().invoke(commands, ["predict", *arguments], input=stdin)
    assert done.exit_code == 0, done.output
    return list(csv.DictReader(io.StringIO(done.stdout)))


def test_rows_of_a_table_are_scaled_as_in_training(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(out, "--task", "table", "--data", "students", "--steps", "200")
    given = list(csv.DictReader(io.StringIO(table.STUDENTS_FILE.read_text("utf-8"))))
    found = predicted(str(out), str(table.STUDENTS_FILE))
    assert [{name: row[name] for name in given[0]} for row in found] == given  # every column is copied
    assert list(found[0]) == [*given[0], "predicted", "p(no)", "p(yes)"]
    assert np.mean([row["predicted"] == row["placed"] for row in found]) > 0.85
    trainer = run.load(out)
    x = trainer.data.held_out.x[:1]
    (no, yes) = trainer.network.forward(x, ForwardContext())[0]
    assert trainer.data.columns is not None
    cgpa, iq = x[0] * trainer.data.columns.std + trainer.data.columns.mean
    (one,) = predicted(str(out), "-", stdin=f"cgpa,iq\n{cgpa},{iq}\n")
    assert float(one["p(yes)"]) == pytest.approx(1 / (1 + np.exp(no - yes)), abs=1e-4)
    # Other columns, in another order, without the target.
    few = predicted(str(out), "-", stdin="id,iq,cgpa\n7,130,9.5\n8,80,5.1\n")
    assert [(row["id"], row["predicted"]) for row in few] == [("7", "yes"), ("8", "no")]
    assert float(few[0]["p(yes)"]) + float(few[0]["p(no)"]) == pytest.approx(1, abs=2e-4)


def test_numbers_are_predicted_in_the_unit_of_the_target(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(50, 9, (200, 2))
    y = 1000 + 30 * x[:, 0] - 20 * x[:, 1]
    lines = [f"{a:.4f},{b:.4f},{c:.4f}" for (a, b), c in zip(x, y, strict=True)]
    data = tmp_path / "data.csv"
    data.write_text("\n".join(["a,b,c", *lines]) + "\n", "utf-8")
    train(tmp_path / "run", "--task", "table", "--data", str(data), "--target", "c", "--norm", "layer")
    data.unlink()  # the training data is not read
    found = predicted(str(tmp_path / "run"), "-", stdin="\n".join(["a,b,c", *lines]))
    error = [float(row["predicted"]) - float(row["c"]) for row in found]
    assert np.sqrt(np.mean(np.square(error))) < 0.1 * y.std()
    assert list(found[0]) == ["a", "b", "c", "predicted"]


def test_the_gender_of_names(tmp_path: Path) -> None:
    train(tmp_path / "run", "--task", "gender", "--steps", "20", "--max-length", "14")
    found = predicted(str(tmp_path / "run"), "-", stdin="name,city\nMaria,Rome\njohn,\n")
    assert [(row["name"], row["city"]) for row in found] == [("Maria", "Rome"), ("john", "")]
    trainer = run.load(tmp_path / "run")
    assert trainer.data.alphabet is not None
    for row in found:
        x = np.array([trainer.data.alphabet.encode(row["name"].lower())])  # alone, without padding
        female, male = trainer.network.forward(x, ForwardContext(lengths=np.array([x.shape[1]])))[0]
        assert float(row["p(male)"]) == pytest.approx(1 / (1 + np.exp(female - male)), abs=1e-4)
        assert row["predicted"] == ("male" if male > female else "female")


@pytest.mark.parametrize(
    ("task", "good", "bad"),
    [
        (
            "gender",
            ["Maria,Rome", "john,"],
            {
                "Zoë,Paris": "names of the letters that the run has seen, got 'Zoë'",
                "abcdefghijklmnop,": "names of 1 to 11 letters, got 'abcdefghijklmnop'",
                ",Bonn": "names of 1 to 11 letters, got ''",
                "é" * 50 + ",": f"names of the letters that the run has seen, got '{'é' * 40}' ...",
            },
        ),
        (
            "table",
            ["9.5,130", "5.1,80"],
            {
                "3,x": "column 'iq' needs finite numbers, got 'x'",
                ",7": "column 'cgpa' needs finite numbers, got ''",
                "1e200,7": "column 'cgpa' needs numbers from -1e+150 to 1e+150, got '1e200'",
                "1e100,7": "inputs and outputs of the network that are finite, got NaN or inf",  # inf in float32
            },
        ),
    ],
)
def test_a_row_that_cannot_be_predicted_is_empty_and_named(
    task: str, good: list[str], bad: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are predicted as if it were not there."""
    out, given = tmp_path / "run", tmp_path / "in.csv"
    train(out, "--task", task, "--steps", "3", *(["--data", "students"] if task == "table" else []))

    def incomplete(lines: list[str]) -> tuple[list[dict[str, str]], list[str]]:
        given.write_text("\n".join(lines), "utf-8")
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(["predict", str(out), str(given)])
        assert stop.value.code == 3
        printed = capsys.readouterr()
        return list(csv.DictReader(io.StringIO(printed.out))), printed.err.splitlines()

    header = "name,city" if task == "gender" else "cgpa,iq"
    alone = predicted(str(out), "-", stdin="\n".join([header, *good]))
    rows = [good[0], *bad, good[1]]
    found, problems = incomplete([header, *rows])
    assert [found[0], found[-1]] == alone
    names = header.split(",")
    for row, text in zip(found[1:-1], bad, strict=True):
        assert [row[name] for name in names] == text.split(",")
        assert len(row) == 5
        assert {value for name, value in row.items() if name not in names} == {""}
    assert problems[-5:] == [
        *(f"{given}, line {line}: {problem}." for line, problem in enumerate(bad.values(), 3)),
        "4 of 6 rows have no prediction: their cells are empty.",
    ]
    # Many, and nothing else.
    found, problems = incomplete([header, *[*bad] * 5])
    assert [row["predicted"] for row in found] == [""] * 20
    assert [line.split(":")[0] for line in problems[-11:-1]] == [f"{given}, line {line}" for line in range(2, 12)]
    assert problems[-1] == "20 of 20 rows have no prediction: their cells are empty. The first 10 are above."


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: Path) -> None:
    for task, options in {
        "table": ["--data", "students"],
        "gender": [],
        "words": ["--data", str(words)],
    }.items():
        train(tmp_path / task, "--task", task, "--steps", "3", *options)
    for task, text, message in (
        ("words", "a\n", f"{tmp_path / 'words'}: needs a run of --task gender or table, got one of --task words. Use "),
        ("table", "", "needs a header and rows, got an empty file."),
        ("table", "iq\n1\n", "needs the column 'cgpa', got iq."),
        ("table", "iq,iq,cgpa\n1,2,3\n", "needs the column 'iq', got it twice."),
        ("table", "cgpa,iq\n", "needs at least one row below the header, got none."),
        ("table", "cgpa,iq\n1,2\n3\n", "each row needs 2 cells, got 1 in line 3."),
        ("table", "cgpa,iq,predicted\n1,2,3\n", "has a column 'predicted' already, which would be added. Rename it."),
        ("gender", "names\nanna\n", "needs the column 'name', got names."),
    ):
        (tmp_path / "in.csv").write_text(text, "utf-8")
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(["predict", str(tmp_path / task), str(tmp_path / "in.csv")])
        printed = capsys.readouterr()
        assert (stop.value.code, printed.out) == (2, ""), printed
        assert message in printed.err.splitlines()[-1], printed.err


def test_closed_standard_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path / "run", "--task", "table", "--data", "students", "--steps", "3")
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(tmp_path / "run"), "-"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.endswith("truenorm: standard input: is closed. Give a CSV file.\n")


@pytest.mark.parametrize("task", ["table", "gender"])
def test_a_checkpoint_of_somebody_else_is_checked(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = Trainer.state

    def forged(trainer: Trainer) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, metadata = state(trainer)
        if task == "table":
            metadata["columns"] |= {"names": [], "mean": [], "std": []}
        else:
            arrays["parameter.positions.table"] = np.array(1, np.float32)
        return arrays, metadata

    monkeypatch.setattr(Trainer, "state", forged)
    train(tmp_path / "run", "--task", task, "--steps", "3", *(["--data", "students"] if task == "table" else []))
    (tmp_path / "in.csv").write_text("cgpa,iq,name\n1,2,anna\n", "utf-8")
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(tmp_path / "run"), str(tmp_path / "in.csv")])
    printed = capsys.readouterr().err
    assert stop.value.code == 2, printed
    assert "checkpoint" in printed


def test_a_network_that_learned_nothing_says_so(tmp_path: Path) -> None:
    train(tmp_path / "run", "--norm", "none", "--lr", "50", "--steps", "20")
    drawn = CliRunner().invoke(commands, ["sample", str(tmp_path / "run"), "--count", "2"])
    assert drawn.stderr == "The run ended no better than guessing. Its words are worth little.\n"
    assert len(drawn.stdout.splitlines()) == 2
