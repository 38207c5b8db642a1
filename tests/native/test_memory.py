"""Resident memory does not grow with the number of calls and shapes: caches hold nothing of the size of the data."""

import subprocess
import sys

import memory
import pytest

pytest.importorskip("truenorm._native", reason="the compiled part was not built")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has /proc/self/statm")


def run(program: str) -> None:
    done = subprocess.run(
        [sys.executable, memory.__file__, program], capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_two_thousand_shapes_through_every_verb() -> None:
    run("numpy_verbs")


@pytest.mark.slow
@pytest.mark.parametrize("program", ["torch_layers", "hundred_thousand_calls"])
def test_memory_is_flat_beside_torch(program: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    run(program)
