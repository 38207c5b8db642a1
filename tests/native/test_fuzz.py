"""Engines agree on random cases, random calls do no harm, the fuzzer notices both, and sanitizers find nothing."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patterns import Array

_native = pytest.importorskip("truenorm._native", reason="the compiled part was not built")
from tools.fuzz import calls, results, run  # noqa: E402
from tools.native_calls import arguments, columns  # noqa: E402

import truenorm as tn  # noqa: E402
from truenorm import engine  # noqa: E402
from truenorm.core.activation import ACTIVATIONS  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def fuzz(*options: str, timeout: float = 120) -> str:
    words = [sys.executable, "-m", "tools.fuzz", *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT)
    assert done.returncode == 0, f"exit code {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


# ---- results ----


def test_engines_agree() -> None:
    report = fuzz("--cases", "200", "--seed", "1")
    cases, _, failures, compared, undetermined = map(int, re.findall(r"\d+", report.splitlines()[-1]))
    assert (cases, failures) == (200, 0)
    assert compared > 5 * undetermined > 0


@pytest.mark.slow
def test_engines_agree_for_long() -> None:
    report = fuzz("--cases", "1500", "--seed", "2", timeout=600)
    assert "0 failures" in report


@pytest.mark.parametrize(
    ("seed", "case"),
    [
        pytest.param(0, 6245, id="a dweight of torch that underflows before it is multiplied by rstd"),
        pytest.param(0, 29355, id="the same with eps_at std"),
        pytest.param(0, 39509, id="a mean far from the first value, whose squares overflow"),
        pytest.param(0, 40932, id="terms of dx that underflow before they are multiplied by a weight of 1000"),
        pytest.param(3, 6617, id="a sum of dy times deviations that overflows in torch"),
        pytest.param(2, 7899, id="a dweight that is not determined, and an m2 that is infinite"),
        pytest.param(21, 1935, id="a dweight without valid elements of a statistic that is not finite"),
        pytest.param(12, 963, id="silu of -inf"),
    ],
)
def test_cases_that_once_failed(seed: int, case: int) -> None:
    results.make(seed, case).check()


def test_neighbours_are_drawn() -> None:
    cases = [results.make(1, i) for i in range(400)]
    assert {case.norm.activation for case in cases} == {None, *ACTIVATIONS}
    assert {case.norm.center for case in cases if case.residual is not None} == {True, False}


@pytest.mark.parametrize("activated", [False, True])
def test_the_fuzzer_notices_results_that_differ(activated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each of these is an error of a few roundings in one result of one engine.
    correct = tn.backward
    for place in range(2):

        def wrong(dy: Array, out: Any, place: int = place) -> Any:
            found: list[Any] = list(correct(dy, out))
            if engine.engine() == "native":
                found[place] = (found[place] * 1.01).astype(found[place].dtype)
            return tuple(found)

        with monkeypatch.context() as patch:
            patch.setattr(tn, "backward", wrong)
            name = ("dx", "dweight")[place]
            cases = (results.make(1, i) for i in range(2000))
            case = next(one for one in cases if usable(one) and (one.norm.activation is not None) == activated)
            with pytest.raises(AssertionError, match=f"native: {name}"):
                case.check()


def usable(case: results.Case) -> bool:
    """Of two values dx is 0 but for rounding, so nothing would differ."""
    plain = case.values == "normal" and case.dtype == "float32" and not case.ragged
    return plain and "weight" in case.parameters and min(case.x.shape) > 2


def test_the_fuzzer_notices_another_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    cases = [case for case in (results.make(1, i) for i in range(1000)) if case.residual is not None]
    correct = results.torch.autograd.backward

    def wrong(y: Any, dy: Any, *others: Any, **more: Any) -> None:
        correct(y, [dy[0], dy[1] * 1.5] if isinstance(dy, list) else dy, *others, **more)

    monkeypatch.setattr(results.torch.autograd, "backward", wrong)
    found = []
    for case in cases:
        with contextlib.suppress(AssertionError):
            case.check()
            continue
        found.append(case)
    assert len(found) > len(cases) / 2  # the others have gradients that are not determined


def test_a_failing_case_is_one_line_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(case: results.Case) -> tuple[int, int, int]:
        assert case.values != "normal", "x differs"
        return 1, 1, 0

    monkeypatch.setattr(results.Case, "check", broken)
    lines: list[str] = []
    counts = run(20, seed=1, show=lines.append)
    assert counts.failures > 0
    assert counts.cases == 20
    assert all(re.match(r"python -m tools\.fuzz --kind results --seed 1 --case \d+  # failed: ", one) for one in lines)


# ---- calls ----


def fairly(report: str) -> None:
    """Neither all calls nor none were right: otherwise nothing was tried."""
    cases, computed, failures = map(int, re.findall(r"\d+", report.splitlines()[-1])[:3])
    assert failures == 0
    assert 0.2 * cases < computed < 0.8 * cases
    assert cases > 200


def test_no_call_of_the_array_entry_does_harm() -> None:
    fairly(fuzz("--kind", "calls", "--seconds", "3", "--seed", "1"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_no_call_of_the_array_entry_does_harm_for_long(seed: int) -> None:
    fairly(fuzz("--kind", "calls", "--seconds", "30", "--seed", str(seed), timeout=240))


def test_the_fuzzer_notices_what_does_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    class Careless:
        """Writes one element too many, or into x, or not at all, or raises when it is too late."""

        fault = ""

        def __init__(self, **options: Any) -> None:
            pass

        def measure(self, x: Array, moments: Array, **ragged: Any) -> None:
            place = calls.own_bytes(moments)
            if self.fault == "no output's":
                calls.root(moments)[place.stop] ^= 1
            elif self.fault == "x: ":
                x[0] += 1
            moments[: -1 if self.fault == "held" else None] = 5
            if self.fault == "written before":
                raise ValueError("too late")
            if self.fault == "nothing is wrong":
                moments.view(np.uint8)[:] = 0xA5
                raise ValueError("no")

    monkeypatch.setattr(_native, "Plan", Careless)
    sizes = columns(1, 2, 3, 4)
    for fault in ("", "no output's", "x: ", "held", "written before", "nothing is wrong"):
        Careless.fault = fault
        taken = arguments("measure", sizes)
        taken["moments"] = calls.fenced(taken["moments"], 64)
        case = calls.Case({}, "measure", taken, right=True)
        if not fault:
            assert calls.check(case)
            continue
        with pytest.raises(AssertionError, match=fault):
            calls.check(case)


# ---- sanitizers ----


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["address", "thread"])
def test_sanitizers_find_nothing(kind: str) -> None:
    words = ["bash", str(ROOT / "tools/sanitizers.sh"), kind]
    environment = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=1800, check=False)
    if done.returncode == 77:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, f"exit code {done.returncode}:\n{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
