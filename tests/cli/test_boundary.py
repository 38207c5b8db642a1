"""Where commands meet the outside: every error ends in one line, and no text from a file controls the terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from truenorm.cli import main
from truenorm.explanation.terminal import printable

ESCAPE = "\x1b[31mred\x1b[0m\x9b2J\u202e"
REPORT = (
    "This is a fault in truenorm. Please report it with the output of 'truenorm env' and of this command with --debug."
)


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    printed = capsys.readouterr()
    return int(stop.value.code or 0), printed.out, printed.err


def in_shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command line, in which `truenorm` is this package."""
    script = f'truenorm() {{ "{sys.executable}" -m truenorm "$@"; }}; {command}'
    environment = {**os.environ, **environment}
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, errors="replace", env=environment)


# ---- errors ----


@pytest.mark.parametrize("error", [KeyError("norm1"), OverflowError("int too large\nsecond line"), TypeError("x")])
def test_a_fault_of_ours_is_one_line_with_how_to_report_it(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("truenorm.cli.env._tensors", fail)
    first_line = str(error).splitlines()[0]
    assert called(capsys, "env") == (1, "", f"truenorm: {type(error).__name__}: {first_line}. {REPORT}\n")
    with pytest.raises(type(error)):
        main(["env", "--debug"])


def test_a_message_without_words_names_its_kind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr("truenorm.cli.env._tensors", fail)
    assert called(capsys, "env") == (2, "", "truenorm: ValueError.\n")


def test_a_long_error_shows_its_beginning_and_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "long.csv"
    file.write_text("1,2\n3," + "x" * 100_000)
    code, _, err = called(capsys, "explain", str(file))
    assert code == 2
    assert len(err) < 1100
    assert err.startswith(f"truenorm: {file}, line 2, column 2: needs a number, got 'xxx")
    assert err.endswith("xxx'. Only the first line may hold names.\n")


@pytest.mark.parametrize(
    ("filename", "message"),
    [(None, "gone."), ("a.csv", "a.csv: gone."), (b"b\xff", r"b\xff: gone."), (7, "7: gone.")],
)
def test_errors_of_the_operating_system_name_the_file(
    filename: object, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "gone", filename)

    monkeypatch.setattr("truenorm.cli.env._tensors", fail)
    assert called(capsys, "env") == (2, "", f"truenorm: {message}\n")


@pytest.mark.parametrize(
    ("redirection", "code", "message"),
    [
        ("explain <&-", 2, "standard input: is closed. Give a CSV file, or --example table."),
        ("explain --example table > /dev/full", 2, "No space left on device."),
        ("explain --example table >&-", 0, ""),
        ("explain /dev/zero", 2, "/dev/zero: must be at most 16 MiB, got more."),
    ],
)
def test_standard_streams_that_are_closed_or_full(redirection: str, code: int, message: str) -> None:
    done = in_shell(f"truenorm {redirection}")
    assert (done.returncode, done.stderr) == (code, f"truenorm: {message}\n" if message else "")


@pytest.mark.parametrize("redirection", ["2> /dev/full", "2>&-", "2>&1 | true"])
def test_an_error_that_cannot_be_printed_keeps_its_exit_code(redirection: str) -> None:
    done = in_shell(f"truenorm explain nothing.csv {redirection}; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (2, "")


def test_a_pipe_that_is_closed_early_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "large.csv").write_text("1,2,3\n4,5,7\n" * 2_000)
    for command in (f"explain {tmp_path}/large.csv --json | head -1", "--help | true"):
        done = in_shell(f"truenorm {command}; exit ${{PIPESTATUS[0]}}")
        assert (done.returncode, done.stderr) == (0, ""), command


def test_a_file_name_that_is_not_utf_8(tmp_path: Path) -> None:
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    for name in (b"/\xff/words", b"/words"):
        Path(os.fsdecode(os.fsencode(tmp_path) + name)).write_text("one\ntwo\n")
    for command, code, message in (
        ("explain $'\\xff/none.csv'", 2, "truenorm: \\xff/none.csv: No such file or directory.\n"),
        (
            "train --data $'\\xff/words' --out run",
            2,
            f"truenorm: --data: a name in UTF-8, got {tmp_path}/\\xff/words. Rename it.\n",
        ),
    ):
        done = in_shell(f"cd {tmp_path}; truenorm {command}")
        assert (done.returncode, done.stdout, done.stderr) == (code, "", message)
    done = in_shell(f"cd {tmp_path}; truenorm train --data words --steps 2 --out $'\\xff/run'")
    assert done.returncode == 0, done.stderr
    assert "Saved in \\xff/run." in done.stdout


# ---- text from files ----


def test_printable_text_has_no_control_characters() -> None:
    every = "".join(map(chr, range(0x3000))) + "\ud800\udcff\ufeff"
    shown = printable(every)
    assert not [character for character in shown if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")]
    assert printable("naïve 東京 👩‍👩‍👧 می‌خواهم") == "naïve 東京 👩‍👩‍👧 می‌خواهم"
    assert printable("a\x1b[0m\n\u202e") == r"a\u001b[0m\u000a\u202e"
    assert json.loads(f'"{printable(ESCAPE)}"') == ESCAPE


def test_names_from_a_file_do_not_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "table.csv"
    file.write_text(f"{ESCAPE},b\n" + "".join(f"{i},{i % 2}\n" for i in range(8)), "utf-8")
    code, out, err = called(capsys, "explain", str(file))
    assert (code, err) == (0, "")
    assert r"\u001b[31mred" in out
    code, as_json, _ = called(capsys, "explain", str(file), "--json")
    assert json.loads(as_json)
    _, _, message = called(capsys, "train", "--task", "table", "--data", str(file), "--target", "y", "--out", "run")
    assert r"--target: one of the columns \u001b[31mred" in message
    words = tmp_path / "words.txt"
    words.write_text("".join(f"a{ESCAPE}{i}\n" for i in range(30)), "utf-8")
    run = str(tmp_path / "run")
    code, trained, progress = called(capsys, "train", "--data", str(words), "--steps", "30", "--out", run)
    assert code == 0
    _, sampled, _ = called(capsys, "sample", run)
    assert r"\u001b" in sampled
    classes = tmp_path / "classes.csv"
    classes.write_text("a,b\n" + "".join(f"{i},{ESCAPE if i % 2 else 'x'}\n" for i in range(8)), "utf-8")
    options = ["--task", "table", "--data", str(classes), "--target", "b", "--steps", "3", "--out", f"{run}2"]
    code, trained2, progress2 = called(capsys, "train", *options)
    assert code == 0
    assert r"2 classes: \u001b[31mred" in progress2
    for text in (out, as_json, message, trained, progress, sampled, trained2, progress2):
        assert not set(text).intersection("\x1b\x9b\u202e")


# ---- the terminal ----


@pytest.mark.parametrize("columns", ["0", "1", "7"])
def test_a_terminal_without_a_width_shows_everything(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    code, out, _ = called(capsys, "explain", "--example", "table")
    assert code == 0
    for text in ("mean", "xhat", "1.18585"):
        assert text in out
