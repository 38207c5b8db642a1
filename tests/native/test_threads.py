"""Same data, same bits: whatever the number of threads, the callers beside, and the instruction set."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from patterns import (
    assert_same_results,
    odd,
    run,
)
from workloads import PATTERNS, in_subprocess, work

import truenorm as tn
from truenorm import engine

_native = pytest.importorskip("truenorm._native", reason="the compiled part was not built")
pytestmark = pytest.mark.usefixtures("on_pool")


# ---- threads ----


@pytest.mark.parametrize("name", PATTERNS)
def test_the_number_of_threads_changes_no_bit(name: str) -> None:
    for what, call in work(name, (np.float16, np.float32, np.float64)):
        engine.set_threads(1)
        expected = call()
        assert np.isfinite(expected.dx).all()
        for count in range(2, 8):
            engine.set_threads(count)
            assert_same_results(call(), expected, f"{what}, {count} threads")


def use_openmp() -> None:
    """Its threads, which torch brings, instead of the pool's."""
    pytest.importorskip("torch", reason="torch is not installed")
    if not _native.use_openmp(True):
        pytest.skip("this torch has no OpenMP")


@pytest.mark.parametrize("name", PATTERNS)
def test_threads_of_openmp_change_no_bit(name: str) -> None:
    for what, call in work(name, (np.float16, np.float32, np.float64)):
        _native.use_openmp(False)
        engine.set_threads(1)
        expected = call()
        use_openmp()
        for count in (1, 2, 3, 7):
            engine.set_threads(count)
            assert_same_results(call(), expected, f"{what}, {count} threads")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux lists the threads of a process")
@pytest.mark.slow
def test_threads_of_openmp_are_used_instead_of_the_pool() -> None:
    script = """
        import os, numpy as np, torch, truenorm as tn, truenorm.torch
        from truenorm import _native, engine
        def threads(): return len(os.listdir("/proc/self/task"))
        if _native.use_openmp(True):
            torch.set_num_threads(3)
            torch.randn(1000, 1000).sqrt()  # its threads are here now
            alone = threads()
            tn.forward(np.ones((1000, 70), np.float32), tn.layer())
            assert threads() == alone, "a pool beside them"
            engine.set_threads(5)
            tn.forward(np.ones((1000, 70), np.float32), tn.layer())
            assert threads() == alone + 2, (threads(), alone)
    """
    in_subprocess("\n".join(line.removeprefix(" " * 8) for line in script.splitlines()))


@pytest.mark.parametrize("name", PATTERNS)
def test_twenty_repetitions_change_no_bit(name: str) -> None:
    engine.set_threads(4)
    for what, call in work(name):
        expected = call()
        for _ in range(20):
            assert_same_results(call(), expected, what)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux lists the threads of a process")
def test_threads_are_used_when_there_is_enough_to_do() -> None:
    # Otherwise the tests above compare one thread with itself.
    script = """
        import os, numpy as np, truenorm as tn
        from truenorm import engine
        def threads(): return len(os.listdir("/proc/self/task"))
        engine.set_threads(5)
        alone = threads()
        tn.forward(np.ones((1000, 65), np.float32), tn.layer())
        assert threads() == alone, "65000 elements are not worth a thread"
        tn.forward(np.ones((1000, 66), np.float32), tn.layer())
        assert threads() == alone + 4, threads()
        engine.set_threads(2)
        tn.forward(np.ones((1000, 70), np.float32), tn.batch())
        assert threads() == alone + 4, threads()
    """
    in_subprocess("\n".join(line.removeprefix(" " * 8) for line in script.splitlines()))


def test_threads_sleep_when_there_is_nothing_to_do() -> None:
    # Busy ones would take the processors from the host library's own.
    engine.set_threads(5)
    tn.forward(np.ones((1000, 100), np.float32), tn.layer())
    time.sleep(0.01)  # they wait awake for 50 us
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.05


@pytest.mark.parametrize("openmp", [False, True], ids=["pool", "openmp"])
def test_calls_from_several_threads_at_once_change_no_bit(openmp: bool) -> None:
    engine.set_threads(3)
    if openmp:
        use_openmp()
    calls = [one for name in PATTERNS for one in work(name)]
    expected = [call() for _, call in calls]
    start = threading.Barrier(4)

    def everything(first: int) -> None:
        start.wait()
        for i in range(len(calls)):  # each begins elsewhere, so that different kernels meet in the pool
            number = (i + first * len(calls) // 4) % len(calls)
            what, call = calls[number]
            assert_same_results(call(), expected[number], f"{what}, beside others")

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(everything, first) for first in range(4)]:
            done.result()


def test_the_interpreter_runs_on_beside_a_call() -> None:
    x = np.ones((4000, 1000), np.float32)
    engine.set_threads(1)
    begun, ended, seen = threading.Event(), threading.Event(), 0

    def compute() -> None:
        begun.set()
        for _ in range(5):
            tn.forward(x, tn.layer())
        ended.set()

    before = sys.getswitchinterval()
    sys.setswitchinterval(10.0)  # no thread is made to release the interpreter
    try:
        thread = threading.Thread(target=compute)
        thread.start()
        begun.wait()
        while not ended.is_set():
            seen += 1
            ended.wait(0.0005)
        thread.join()
    finally:
        sys.setswitchinterval(before)
    assert seen > 2


# ---- instruction sets ----


@pytest.mark.parametrize("loops", ["avx2", "avx512"])
def test_instruction_sets_change_no_bit(loops: str) -> None:
    if not _native.select_loops(loops):
        pytest.skip(f"this processor has no {loops}")
    assert _native.build_info()["instruction_set"] == loops
    for what, call in [one for name in PATTERNS for one in work(name, (np.float16, np.float32, np.float64))]:
        _native.select_loops(loops)
        found = call()
        assert _native.select_loops("baseline")
        assert_same_results(found, call(), f"{what}, {loops}")


@pytest.mark.parametrize("loops", ["avx2", "avx512"])
def test_instruction_sets_change_no_bit_of_unusual_numbers(loops: str) -> None:
    if not _native.select_loops(loops):
        pytest.skip(f"this processor has no {loops}")
    rng = np.random.default_rng(2)
    for scale, offset, n in [
        (s, o, n) for s in (1e-42, 1e-20, 1.0, 1e30) for o in (0, 1e3) for n in (1, 37, 130, 2049)
    ]:
        x = (scale * rng.normal(offset, 1.0, (3, n))).astype(np.float32)
        dy = (min(scale, 1.0) * odd(rng, x.shape)).astype(np.float32)
        for norm, shape in ((tn.layer(eps=0), (3, n)), (tn.batch(eps=0), (n, 3)), (tn.instance("second"), (1, 3, n))):
            _native.select_loops(loops)
            found = run(x.reshape(shape), dy.reshape(shape), norm)
            _native.select_loops("baseline")
            expected = run(x.reshape(shape), dy.reshape(shape), norm)
            assert_same_results(found, expected, f"{norm}, {shape}, {scale}, {offset}")


def test_the_best_instruction_set_is_the_default() -> None:
    names = [name for name in ("avx512", "avx2", "baseline") if _native.select_loops(name)]
    assert names[-1] == "baseline"
    assert _native.select_loops("")
    assert _native.build_info()["instruction_set"] == names[0]
