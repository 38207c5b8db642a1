"""`truenorm claims`: verdicts on the terminal, as JSON and as a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import pytest
from fake_trials import small_grid

from truenorm.cli import main
from truenorm.cli.claims import command
from truenorm.lab.claims import CLAIMS
from truenorm.lab.results import Results, make_plan


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["claims", *arguments])
    printed = capsys.readouterr()
    return int(stop.value.code or 0), printed.out, printed.err


def test_the_claims_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = called(capsys, "--list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(CLAIMS)
    assert len(CLAIMS) == 13


@pytest.mark.parametrize(
    "only",
    [
        ["--only", "undo,padding"],
        ["--only", "undo", "--only", "padding"],
        ["--only", " undo , padding,undo", "--only", "padding"],
    ],
)
def test_claims_are_chosen_by_commas_and_by_repetition(only: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = called(capsys, "--list", *only)
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["undo", "padding"]


def test_the_help_says_how_claims_are_chosen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = called(capsys, "--help")
    text = " ".join(out.split())
    assert "--only NAME,... Only these claims, separated by commas. May be repeated; --list shows the names." in text
    completed = command.params[1].shell_complete(click.Context(command), "undo,pa")
    assert [item.value for item in completed] == ["undo,padding"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            (
                ["--only", given],
                f"Invalid value for '--only': must be one or more of {', '.join(CLAIMS)}, got {name!r}. "
                "See 'truenorm claims --help'.",
            )
            for given, name in (("padding,umdo", "umdo"), ("undo,", ""))
        ),
        (["--workers", "2", "--dask", "x:1"], "--workers: not with --dask, whose workers are started by dask worker."),
        (["--write", "none/claims.md"], "--write: a file in a directory that exists, got none/claims.md."),
        (["--write", "x.svg"], "--write: the name of a Markdown file, got one of a picture. Its picture is beside it."),
    ],
)
def test_bad_input_is_said_before_anything_runs(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = called(capsys, "--only", "undo", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"truenorm: {message}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("precious", "what"), [("logo.md", "a page about claims"), ("logo.svg", "a picture of claims")]
)
def test_write_replaces_only_what_it_wrote(
    precious: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(precious).write_text("precious")
    problem = f"truenorm: {precious}: exists and is not {what}. Choose another name, or remove it.\n"
    assert called(capsys, "--only", "undo", "--write", "logo.md") == (2, "", problem)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(precious, "precious")]


def test_the_directory_of_a_comparison_is_left_alone(words: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "compared"
    with Results(out, make_plan([small_grid(words)])):
        pass
    before = (out / "grid.json").read_bytes()
    code, _, problem = called(capsys, "--only", "undo", "--seeds", "1", "--out", str(out))
    assert code == 2
    assert problem == f"truenorm: {out}: holds the results of truenorm compare, not of claims. Choose another --out.\n"
    assert (out / "grid.json").read_bytes() == before


def test_verdicts_are_the_same_when_the_trials_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, more = tmp_path / "claims.md", ["--workers", "1", "--out", str(tmp_path / "out")]
    code, first, err = called(capsys, "--only", "undo,undo", "--seeds", "5", "--json", "--write", str(page), *more)
    assert code == 0
    assert err.endswith("5 of 5 trials\n")
    code, again, err = called(capsys, "--only", "undo", "--seeds", "5", "--json", "--write", str(page), *more)
    assert (code, err) == (0, "5 of 5 trials are there already.\n")
    assert again == first
    (claim,) = json.loads(first)
    (statement,) = claim["statements"]
    assert (claim["claim"], claim["verdict"], statement["holds_if"]) == ("undo", "supported", "below -12")
    assert len(statement["effects"]) == 5
    low, high = statement["interval"]
    assert low < statement["mean"] < high < -12
    text = page.read_text()
    assert "\nIt took 1 s with 1 worker. The times of all 5 trials add up to 1 s. " in text
    assert f"    truenorm claims --seeds 5 --only undo --write {page}\n" in text
    assert "| [Weight and bias can undo the normalization.](#undo) | supported |\n" in text
    assert "\n## undo\n" in text
    assert "](claims.svg)\n" in text
    drawn = ElementTree.fromstring((tmp_path / "claims.svg").read_text())
    texts = [one.text for one in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[:3] == ["Weight and bias can undo the normalization. ", "The error is below 1e-12.", "supported"]
    dots = [one for one in drawn.iter("{http://www.w3.org/2000/svg}circle") if one.get("r") == "1.6"]
    assert len(dots) == 5
    # Other seeds and claims use the same directory, and keep its trials.
    code, out, err = called(capsys, "--only", "undo", "--seeds", "3", *more)
    assert (code, err) == (0, "3 of 3 trials are there already.\n")
    assert out.startswith("undecided  Weight and bias can undo the normalization.\n")
