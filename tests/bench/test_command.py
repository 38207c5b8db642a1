"""`python -m bench` and the small helpers of the other commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench import __main__ as command
from bench.cases import SUITES
from bench.suite import Suite
from bench.table import ROOT, render
from click.testing import CliRunner, Result


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True)


def test_the_command_lists_its_suites() -> None:
    done = bench("--list")
    assert done.stdout.split() == [suite.name for suite in SUITES], done.stderr


def test_an_unknown_suite_is_refused() -> None:
    done = bench("--suite", "nothing")
    assert done.returncode == 2
    assert "--suite: one of batch-ragged, " in done.stderr


@pytest.mark.slow
def test_the_command_measures_and_writes_json(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    done = bench("--suite", "batch-32x100", "--quick", "--seconds", "0.1", "--patience", "0", "--json", str(path))
    assert done.returncode == 0, done.stderr
    results = json.loads(path.read_text("utf-8"))
    assert done.stdout == render(results, every=True)
    assert results["settings"]["variables"]["MALLOC_MMAP_MAX_"] == "0"
    (suite,) = results["suites"]
    assert suite["implementations"][0]["status"] == "ok"
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


# --- --record ---


@pytest.mark.parametrize("options", [("--quick",), ("--suite", "batch-32x100"), ("--json", "results.json")])
def test_only_whole_runs_are_recorded(options: tuple[str, ...]) -> None:
    done = bench("--record", *options)
    assert done.returncode == 2
    assert "--record measures everything: leave out --suite, --quick and --json." in done.stderr


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """`--record` in an empty folder, with made-up times."""
    return Recording(tmp_path, monkeypatch)


class Recording:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file, self.published = folder / "results.json", list[dict[str, Any]]()
        self.measured: list[str] = []
        self.busy: set[str] = set()
        self.stop_at = ""
        self.machine: dict[str, Any] = {
            "cpu": "A processor",
            "system": "Linux x86_64",
            "engine": "native",
            "versions": {"python": "3.11.0"},
            "revision": "one",
        }
        monkeypatch.setattr(command, "RECORD", self.file)
        monkeypatch.setattr(command, "enter", lambda allocator: None)
        monkeypatch.setattr("bench.measure.measure", self.measure)
        monkeypatch.setattr("bench.machine.facts", lambda: self.machine)
        monkeypatch.setattr("bench.table.publish", self.published.append)

    def measure(self, suite: Suite, **_: Any) -> dict[str, Any]:
        if suite.name == self.stop_at:
            raise KeyboardInterrupt
        self.measured.append(suite.name)
        return {
            "name": suite.name,
            "title": suite.title,
            "baseline": suite.baseline,
            "rounds": {"total": 5, "quiet": 5, "disturbed": suite.name in self.busy},
            "copy": {"seconds": {"median": 1.0}},
            "implementations": [{"name": one.name, "status": "missing: all"} for one in suite.implementations],
            "comparisons": [],
        }

    def run(self) -> Result:
        self.measured.clear()
        return CliRunner().invoke(command.main, ["--record"])


NAMES = [suite.name for suite in SUITES]


def test_a_whole_run_is_recorded_and_published(recording: Recording) -> None:
    assert recording.run().exit_code == 0
    assert recording.measured == NAMES
    (published,) = recording.published
    assert published == json.loads(recording.file.read_text("utf-8"))
    assert sorted(file.name for file in recording.file.parent.iterdir()) == ["results.json", "results.partial.json"]
    assert recording.run().exit_code == 0  # make bench-all, run again because a later step failed
    assert recording.measured == []


def test_an_interrupted_run_records_nothing_and_continues(recording: Recording) -> None:
    recording.stop_at = NAMES[3]
    assert recording.run().exit_code == 1
    assert not recording.file.exists()
    assert not recording.published
    recording.stop_at = ""
    assert recording.run().exit_code == 0
    assert recording.measured == NAMES[3:]
    assert [suite["name"] for suite in recording.published[0]["suites"]] == NAMES


def test_disturbed_suites_are_measured_again_before_anything_is_recorded(recording: Recording) -> None:
    recording.busy = {NAMES[2], NAMES[5]}
    done = recording.run()
    assert done.exit_code == 1
    assert done.stderr.endswith(
        f"Error: Nothing was recorded: other processes were busy during {NAMES[2]}, {NAMES[5]}. "
        "Run the same command again to measure only these.\n"
    )
    assert not recording.file.exists()
    recording.busy, recording.stop_at = set(), NAMES[5]
    assert recording.run().exit_code == 1
    assert recording.measured == [NAMES[2]]
    recording.stop_at = ""
    assert recording.run().exit_code == 0
    assert recording.measured == [NAMES[5]]  # what came after the interruption was not lost
    assert [suite["name"] for suite in recording.published[0]["suites"]] == NAMES


def test_a_run_at_another_revision_starts_again(recording: Recording) -> None:
    recording.stop_at = NAMES[3]
    recording.run()
    recording.stop_at, recording.machine = "", recording.machine | {"revision": "another"}
    assert recording.run().exit_code == 0
    assert recording.measured == NAMES


def test_lengths_of_a_block_leave_the_share_of_padding_that_was_asked_for() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from bench.layers import padded_lengths

    for share in (0.0, 0.3, 0.5):
        lengths = padded_lengths(16, 200, share)
        assert int(lengths.max()) == 200
        assert abs(1 - float(lengths.sum()) / (16 * 200) - share) < 0.01
