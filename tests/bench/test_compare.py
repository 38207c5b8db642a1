"""`python -m bench.compare`: what it measures, with few trials."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytest.importorskip("distributed", reason="needs the extra cluster")

from bench.compare import grid_options
from bench.table import ROOT


@pytest.mark.parametrize(("trials", "count"), [(200, 200), (1010, 1000), (10_000, 10_000)])
def test_the_grid_has_about_as_many_trials_as_asked_for(trials: int, count: int) -> None:
    assert grid_options(trials)[1] == count


@pytest.mark.slow
def test_a_grid_is_planned_stopped_resumed_and_reported() -> None:
    """In a process of its own: the peak memory of a child includes that of its parent before it started."""
    pytest.importorskip("vl_convert", reason="needs the extra report")
    command = [sys.executable, "-m", "bench.compare", "--only", "overhead", "--trials", "1000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    table = done.stdout
    parts = re.findall(r"run, stopped by Ctrl-C after (\d+)|resume, (\d+) more", table)
    assert int(parts[0][0]) + int(parts[1][1]) == 1000
    assert 500 <= int(parts[0][0]) < 1000
    megabytes = [int(one) for one in re.findall(r"(\d+) MB \|\n", table)]
    assert len(megabytes) == 5
    assert max(megabytes) < 400
    assert "Overhead of a trial: " in table
    assert re.search(r"; python [\d.]+, truenorm [\d.]+, numpy [\d.]+; revision \w+\+?\.", table)
