"""What the measuring process sets, and what is recorded about the machine."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import numpy as np
import pytest
from bench.machine import ROOT, facts
from bench.process import some_processors, variables


def test_processors_are_taken_from_different_cores_first(tmp_path: Path) -> None:
    for number, siblings in enumerate(("0,1", "0,1", "2,3", "2,3")):
        (tmp_path / f"cpu{number}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{number}/topology/thread_siblings_list").write_text(f"{siblings}\n")
    assert some_processors(2, [0, 1, 2, 3], tmp_path) == [0, 2]
    assert some_processors(3, [0, 1, 2, 3], tmp_path) == [0, 2, 1]
    assert some_processors(2, [5, 7], tmp_path / "nothing") == [5, 7]


def test_the_allocator_and_the_threads_are_stated() -> None:
    assert variables("system") == dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "2")
    assert variables("reuse")["MALLOC_MMAP_MAX_"] == "0"


@pytest.mark.slow
def test_facts_name_neither_host_nor_path() -> None:
    found = json.dumps(facts())
    assert platform.node() == "" or f'"{platform.node()}' not in found
    assert str(ROOT) not in found
    assert str(Path.home()) + "/" not in found
    assert json.loads(found)["versions"]["numpy"] == np.__version__
