"""The interpreter ends while threads are inside kernels: nothing aborts, and the exit code is 0."""

import os
import subprocess
import sys

import exits
import pytest

pytest.importorskip("truenorm._native", reason="the compiled part was not built")


def run(program: str, repetitions: int) -> None:
    """Two processes at a time, each of which must end without a word."""
    if program == "beside_torch":
        pytest.importorskip("torch", reason="torch is not installed")
    if program == "forked_child" and not hasattr(os, "fork"):
        pytest.skip("this system cannot fork")
    command = [sys.executable, exits.__file__, program]
    for first in range(0, repetitions, 2):
        started = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for _ in range(min(2, repetitions - first))
        ]
        texts = [process.communicate(timeout=120)[0] for process in started]
        for number, (process, text) in enumerate(zip(started, texts, strict=True), first):
            assert (process.returncode, text) == (0, ""), f"{program}, exit {number}"


@pytest.mark.parametrize("program", exits.PROGRAMS)
def test_the_exit_is_clean_with_threads_inside_kernels(program: str) -> None:
    run(program, 1 if program == "beside_torch" else 2)


@pytest.mark.slow
@pytest.mark.parametrize("program", exits.PROGRAMS)
def test_fifty_of_fifty_exits_are_clean(program: str) -> None:
    if program != "beside_torch" or not hasattr(os, "fork"):
        return run(program, 50)
    pytest.importorskip("torch", reason="torch is not installed")
    command = [sys.executable, exits.__file__, program, "50"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
