"""Same data, same bits: also in a forked process, which has none of its parent's threads."""

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from workloads import in_subprocess, work

from truenorm import engine

_native = pytest.importorskip("truenorm._native", reason="the compiled part was not built")

HERE = Path(__file__).resolve().parent


def call_here(function: Callable[[], None]) -> str:
    path = [str(HERE), *sys.path]
    return f"import sys; sys.path[:0] = {path!r}; import test_forks; test_forks.{function.__name__}()"


def digest(number: int = 0) -> bytes:
    """All bits of some work that the pool takes part in."""
    engine.set_threads(3)
    found = [call() for name in ("batch", "layer", "instance second", "group") for _, call in work(name)]
    return b"".join(one.tobytes() for result in found for one in (result.y, result.dx, result.moments.m2))


def in_fork(function: Callable[[], bool]) -> None:
    """Runs it in a forked child, which must end well."""
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if function() else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status


def fork_and_compute() -> None:
    expected = digest()  # the pool exists now, and the child has none of its threads
    in_fork(lambda: digest() == expected)

    def again() -> bool:
        same = digest() == expected
        in_fork(lambda: digest() == expected)
        return same and digest() == expected

    in_fork(again)
    assert digest() == expected


def fork_beside_a_call() -> None:
    """Another thread is inside the kernels, and holds their locks, whenever this one forks."""
    expected, stop = digest(), threading.Event()

    def busy() -> None:
        while not stop.is_set():
            digest()

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for _ in range(5):
            in_fork(lambda: digest() == expected)
    finally:
        stop.set()
        thread.join()


def spread_over_processes() -> None:
    expected = digest()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(digest, range(4)) == [expected] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize("openmp", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["pool", "openmp"])
@pytest.mark.parametrize("function", [fork_and_compute, fork_beside_a_call, spread_over_processes])
def test_a_forked_child_computes_the_same_bits(function: Callable[[], None], openmp: bool) -> None:
    if openmp:  # it survives no fork itself
        pytest.importorskip("torch", reason="torch is not installed")
    in_subprocess(("import truenorm.torch; " if openmp else "") + call_here(function))
