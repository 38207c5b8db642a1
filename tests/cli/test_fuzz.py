"""Random calls of the commands with hostile files and arguments (tools/fuzz_commands.py)."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tools import fuzz_commands
from tools.fuzz_commands import Ended, problem_of

from truenorm.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]


def fuzz(*options: str) -> subprocess.CompletedProcess[str]:
    """In another process: it is watched for writes, and that cannot be undone."""
    command = [sys.executable, "-m", "tools.fuzz_commands", *options]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.mark.parametrize("options", [["--cases", "40"], pytest.param(["--seconds", "30"], marks=pytest.mark.slow)])
def test_every_call_computes_or_ends_in_one_line(options: list[str]) -> None:
    done = fuzz("--seed", "5", "--seconds", "120", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    calls = re.search(r"^(\d+) calls \(.*\), 0 failures$", done.stdout, re.MULTILINE)
    assert calls is not None
    assert int(calls[1]) >= 40


def test_a_case_follows_from_its_number() -> None:
    assert [fuzz_commands.make(1, i) for i in range(20)] == [fuzz_commands.make(1, i) for i in range(20)]
    assert fuzz_commands.make(1, 3) != fuzz_commands.make(2, 3)


def test_every_command_that_reads_files_is_driven() -> None:
    cases = [fuzz_commands.make(1, i) for i in range(400)]
    assert {case.arguments[0] for case in cases if case.files and case.arguments} >= {*COMMANDS} - {"demo", "env"}
    assert {case.damaged_file for case in cases} >= {"grid.json", "machine.json", "trial-*.json", "result.json"}


@pytest.mark.parametrize(
    ("ended", "problem"),
    [
        (Ended(0, "fine\n", "", ()), None),
        (Ended(2, "", "truenorm: x: must be y, got z.\n", ()), None),
        (Ended(3, "", "1 of 2 rows have no prediction: their cells are empty.\n", ()), None),
        (Ended(1, "", "truenorm: KeyError: 'x'.\n", ()), "exit code 1"),
        (Ended(120, "", "", ()), "exit code 120"),
        (Ended(2, "", "\nTraceback (most recent call last):\ntruenorm: x\n", ()), "a traceback"),
        (Ended(2, "", "", ()), "an error without a line"),
        (Ended(0, "\x1b[2J", "", ()), "control characters"),
        (Ended(0, "", "", ("open /etc/passwd",)), "written outside: open /etc/passwd"),
        (Ended(None, "", "", (), "Traceback ..."), "an exception reached the top"),
    ],
)
def test_failures_are_detected(ended: Ended, problem: str | None) -> None:
    found = problem_of(ended)
    assert found is None if problem is None else found is not None and problem in found


def test_writes_outside_are_seen(tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from tools import fuzz_commands as f
inside, outside = Path(sys.argv[1], "inside"), Path(sys.argv[1], "outside")
inside.mkdir(), outside.mkdir()
os.symlink(outside / "victim", inside / "link")
def write(_):
    (inside / "fine").write_text("x")
    (inside / "link").write_text("x")
    os.mkdir(outside / "made")
    open(outside / "victim").close()
    os.remove(outside / "victim")
    raise SystemExit(0)
f.main = write
sys.addaudithook(f.watch_writes)
print(*f.call((), inside).written, sep="\\n")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, cwd=ROOT, check=True
    )
    outside = tmp_path.resolve() / "outside"
    assert done.stdout.splitlines() == [
        f"open {outside}/victim",
        f"os.mkdir {outside}/made",
        f"os.remove {outside}/victim",
    ]
