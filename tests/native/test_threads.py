"""Same data, same bits: whoever computes, how often, on which processor, beside whom, and with what padding behind.

The sizes are such that the pool of threads takes part (more than 2^16 elements) and that every kind of item there is
occurs more than once: chunks of 512 rows, blocks of 64 rows or 2048 elements, tiles of 512 columns.
"""

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patterns import (
    Array,
    Pattern,
    Results,
    assert_same_bits,
    assert_same_moments,
    assert_same_results,
    odd,
    offset_data,
    run,
)

import truenorm as tn
from truenorm import engine

_native = pytest.importorskip("truenorm._native", reason="the compiled part was not built")

HERE = Path(__file__).resolve().parent
PATTERNS = {
    "batch": Pattern(tn.batch(), "b:2600* c:40+"),
    "batch, wide": Pattern(tn.batch(), "b:130* c:530+"),
    "batch (b t c)": Pattern(tn.batch(), "b:40* t:70* c:33+"),
    "batch second": Pattern(tn.batch("second"), "b:24* c:7+ t:500*"),
    "layer": Pattern(tn.layer(), "b:20 t:65 c:66*+"),
    "layer, long": Pattern(tn.layer(), "b:140 c:5000*+"),
    "rms": Pattern(tn.rms(), "b:20 t:65 c:66*+"),
    "instance": Pattern(tn.instance(), "b:30 t:90* c:33+"),
    "instance second": Pattern(tn.instance("second"), "b:30 c:17+ t:170*"),
    "instance second, long": Pattern(tn.instance("second"), "b:6 c:5+ t:4500*"),
    "group": Pattern(tn.group(3), "b:30 t:90* g:3+|c:11*+"),
    "group second": Pattern(tn.group(4, "second"), "b:30 g:4+|c:3*+ t:260*"),
}
SEQUENCES = {name: pattern for name, pattern in PATTERNS.items() if pattern.has_lengths}


@pytest.fixture(autouse=True)
def on_native() -> Iterator[None]:
    """Threads that are told, and everything as it was behind each test."""
    before = engine.engine()
    engine.use("native")
    _native.use_openmp(False)
    yield
    engine.use(before)
    engine.set_threads(None)
    _native.use_openmp("truenorm.torch" in sys.modules)
    _native.select_loops("")


def ragged(pattern: Pattern, rng: np.random.Generator) -> dict[str, dict[str, Array]]:
    """Ways to say what is real."""
    valid, times = rng.random(pattern.positions) < 0.7, rng.choice([0.0, 0.5, 2.0], pattern.positions)
    found = {"everything": {}, "valid": {"valid": valid}, "sample_weight": {"valid": valid, "sample_weight": times}}
    if pattern.has_lengths:
        found["lengths"] = {"lengths": lengths_of(pattern, rng)}
    return found


def lengths_of(pattern: Pattern, rng: np.random.Generator) -> Array:
    """Some of every sample, but nothing of the second and all of the last."""
    samples, extent = pattern.positions
    lengths = rng.integers(1, extent + 1, samples)
    lengths[[1, -1]] = 0, extent
    return lengths


Work = list[tuple[str, Callable[[], Results]]]


def work(name: str, dtypes: tuple[type, ...] = (np.float32,)) -> Work:
    """All that there is to do for a pattern, forward and back."""
    pattern, rng = PATTERNS[name], np.random.default_rng(1)
    parameters, found = pattern.parameters(rng), []
    for dtype in dtypes:
        x, dy = (draw(rng, pattern.shape).astype(dtype) for draw in (offset_data, odd))
        for kind, told in ragged(pattern, rng).items():

            def call(x: Array = x, dy: Array = dy, told: dict[str, Any] = told) -> Results:
                return run(x, dy, pattern.norm, **told, **parameters)

            found.append((f"{name}, {dtype.__name__}, {kind}", call))
    return found


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
    sys.setswitchinterval(10.0)  # so that nobody is made to let go of the interpreter
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
            both = []
            for one in (loops, "baseline"):
                _native.select_loops(one)
                both.append(run(x.reshape(shape), dy.reshape(shape), norm))
            assert_same_results(*both, f"{norm}, {shape}, {scale}, {offset}")


def test_the_best_instruction_set_is_the_default() -> None:
    names = [name for name in ("avx512", "avx2", "baseline") if _native.select_loops(name)]
    assert names[-1] == "baseline"
    assert _native.select_loops("")
    assert _native.build_info()["instruction_set"] == names[0]


# ---- padding and batch mates ----


@pytest.mark.parametrize("name", SEQUENCES)
def test_padding_behind_changes_no_bit(name: str) -> None:
    pattern, rng = SEQUENCES[name], np.random.default_rng(3)
    lengths, parameters = lengths_of(pattern, rng), pattern.parameters(rng)
    extent = pattern.positions[1]
    axis = next(i for i, word in enumerate(pattern.words) if word[0][0] == "t")
    x, dy = (draw(rng, pattern.shape).astype(np.float32) for draw in (offset_data, odd))
    times = rng.choice([0.0, 0.5, 2.0], pattern.positions)
    statistics = "t" in [piece[0] for piece in pattern.pieces if not piece[2]]
    for weighted in (False, True):
        expected = None
        for more, content in ((0, 0.0), (0, np.nan), (1, 1e38), (7, np.inf), (64, np.nan), (2100, -1e38)):
            behind = np.arange(extent + more) >= lengths[:, None]
            hidden = np.expand_dims(behind, 3 - axis)

            def padded(array: Array, axis: int, hidden: Array, more: int = more, content: float = content) -> Array:
                widths = [(0, more if i == axis else 0) for i in range(array.ndim)]
                return np.where(hidden, array.dtype.type(content), np.pad(array, widths))

            told = {"sample_weight": padded(times, 1, behind)} if weighted else {}
            found = run(
                padded(x, axis, hidden), padded(dy, axis, hidden), pattern.norm, lengths=lengths, **told, **parameters
            )
            what = f"{name}, {more} more positions of {content}" + ", weighted" * weighted
            for one in (found.y, found.dx):
                assert not one[np.broadcast_to(hidden, one.shape)].any(), what
            moments = (found.moments.count, found.moments.mean, found.moments.m2)
            found = replace(
                found,
                y=found.y.take(range(extent), axis),
                dx=found.dx.take(range(extent), axis),
                moments=tn.Moments(*(one[:, :extent] for one in moments)) if statistics else found.moments,
            )
            expected = expected or found
            assert_same_results(found, expected, what)


MATES = {
    "layer": (tn.layer(), (37, 12)),
    "layer, long": (tn.layer(), (3, 2100)),
    "rms": (tn.rms(), (37, 12)),
    "instance": (tn.instance(), (37, 12)),
    "instance, wide": (tn.instance(), (5, 520)),
    "instance, long": (tn.instance(), (1100, 3)),
    "instance second": (tn.instance("second"), (12, 37)),
    "instance second, long": (tn.instance("second"), (2, 2100)),
    "group": (tn.group(3), (37, 12)),
    "group second": (tn.group(3, "second"), (12, 37)),
    "group of channels alone": (tn.group(3, "second"), (12,)),
}


@pytest.mark.parametrize("name", MATES)
def test_batch_mates_change_no_bit(name: str) -> None:
    norm, each = MATES[name]
    rng, samples = np.random.default_rng(4), 300
    shape = (samples, *each)
    layout = norm.view(shape)
    weights = layout.weight_shape or ()
    parameters = {"weight": odd(rng, weights), "bias": odd(rng, weights)}
    x, dy = offset_data(rng, shape).astype(np.float32), odd(rng, shape).astype(np.float32)
    assert x.size > 2**16 or len(each) == 1
    valid = rng.random(layout.positions) < 0.8
    ways: list[dict[str, Array]] = [{}, {"valid": valid}, {"sample_weight": rng.choice([0.5, 2.0], layout.positions)}]
    if len(each) == 2:
        ways.append({"lengths": rng.integers(0, layout.positions[1] + 1, samples)})
    for told in ways:
        engine.set_threads(3)
        together = run(x, dy, norm, **told, **parameters)
        for mates in ([0], [299], [7, 7], [200, 7], list(range(140, 147)), list(range(299, -1, -1))):
            engine.set_threads(1 + len(mates) % 4)
            some = {name: value[mates] for name, value in told.items()}
            found = run(x[mates], dy[mates], norm, **some, **parameters)
            what = f"{name}, {list(told)}, samples {mates[:3]} of {len(mates)}"
            assert_same_bits(found.y, together.y[mates], f"{what}: y")
            assert_same_bits(found.dx, together.dx[mates], f"{what}: dx")
            moments = (together.moments.count, together.moments.mean, together.moments.m2)
            assert_same_moments(found.moments, tn.Moments(*(one[mates] for one in moments)), what)


def test_rows_alone_have_the_bits_they_have_among_others() -> None:
    rng = np.random.default_rng(5)
    for norm, n in ((tn.layer(), 65), (tn.rms(), 65), (tn.layer(), 2049)):
        x, dy = offset_data(rng, (2, 150, n)).astype(np.float32), odd(rng, (2, 150, n)).astype(np.float32)
        together = run(x, dy, norm)
        for b, t in ((0, 0), (0, 149), (1, 63), (1, 64)):
            alone = run(x[b, t], dy[b, t], norm)
            assert_same_bits(alone.y, together.y[b, t], f"{norm}: y")
            assert_same_bits(alone.dx, together.dx[b, t], f"{norm}: dx")
            assert_same_bits(alone.moments.m2, together.moments.m2[b, t], f"{norm}: m2")


def test_a_bit_that_changes_is_noticed() -> None:
    _, call = work("instance second")[0]
    expected = call()
    found = replace(expected, dx=expected.dx.copy())
    found.dx.view(np.uint32)[3, 5, 7] ^= 1
    with pytest.raises(AssertionError, match="dx: other bits"):
        assert_same_results(found, expected, "one bit")


# ---- forks ----


def in_subprocess(code: str, *, timeout: float = 60) -> None:
    """A process of its own, as a fork may hang: then this raises."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"exit code {done.returncode}:\n{done.stdout}\n{done.stderr}"


def call_here(function: Callable[[], None]) -> str:
    path = [str(HERE), *sys.path]
    return f"import sys; sys.path[:0] = {path!r}; import test_threads; test_threads.{function.__name__}()"


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
@pytest.mark.parametrize("openmp", [False, True], ids=["pool", "openmp"])
@pytest.mark.parametrize("function", [fork_and_compute, fork_beside_a_call, spread_over_processes])
def test_a_forked_child_computes_the_same_bits(function: Callable[[], None], openmp: bool) -> None:
    if openmp:  # it survives no fork itself
        pytest.importorskip("torch", reason="torch is not installed")
    in_subprocess(("import truenorm.torch; " if openmp else "") + call_here(function))
