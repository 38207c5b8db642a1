"""The passes over memory that `python -m bench.sweeps` times."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import sweeps as module
from bench.inputs import Case
from bench.sweeps import main, rows, sweeps
from bench_cases import CASES
from click.testing import CliRunner


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.shape}")
def test_every_pass_runs_and_has_a_row(case: Case) -> None:
    inputs = case.make_inputs()
    found = sweeps(inputs)
    lines, _ = rows("title", found, seconds=0.0, patience=0.0)
    assert [line.split("|")[2].strip() for line in lines] == [sweep.name for sweep in found]
    assert lines[0].startswith("| title | copy | ")
    assert lines[0].endswith("| 100% |")


def test_passes_are_charged_for_valid_rows_only() -> None:
    inputs = CASES[0].make_inputs()
    needed = {sweep.name: sweep.bytes for sweep in sweeps(inputs)}
    valid, whole = inputs.valid_bytes, inputs.x.nbytes
    assert valid < whole
    assert needed["measure"] + needed["write y"] == needed["forward"] == 2 * valid + whole
    assert needed["sum"] + needed["write dx"] == needed["backward"] == 4 * valid + whole


def test_a_disturbed_table_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- sweeps --><!-- /sweeps -->")
    monkeypatch.setattr(module, "enter", lambda allocator: None)
    for busy in (True, False):
        monkeypatch.setattr(module, "rows", lambda title, *_, busy=busy: ([f"| {title} |"], busy))
        done = CliRunner().invoke(main, ["--suite", "batch-32x100", "--write", str(page)])
        assert done.exit_code == busy
        message = "Error: other processes were busy during batch-32x100. Measure again on a quiet machine.\n"
        assert done.stderr.endswith(message) == busy
        assert ("| batch norm, 32x100 |" in page.read_text()) == (not busy)
