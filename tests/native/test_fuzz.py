"""Random calls of the compiled kernels do no harm, the fuzzer notices what does, and sanitizers find nothing."""

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
from tools.native_calls import arguments, columns  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def fuzz(*options: str, timeout: float = 120) -> str:
    words = [sys.executable, "-m", "tools.fuzz_native", *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT)
    assert done.returncode == 0, f"exit code {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def fairly(report: str) -> None:
    """Neither all calls nor none were right: otherwise nothing was tried."""
    cases, computed, failures = map(int, re.findall(r"\d+", report.splitlines()[-1]))
    assert failures == 0
    assert 0.2 * cases < computed < 0.8 * cases
    assert cases > 200


def test_no_call_of_the_array_entry_does_harm() -> None:
    fairly(fuzz("--seconds", "6", "--seed", "1"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_no_call_of_the_array_entry_does_harm_for_long(seed: int) -> None:
    fairly(fuzz("--seconds", "60", "--seed", str(seed), timeout=240))


def test_the_fuzzer_notices_what_does_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    from tools import fuzz_native

    class Careless:
        """Writes one element too many, or into x, or not at all, or raises when it is too late."""

        fault = ""

        def __init__(self, **options: Any) -> None:
            pass

        def measure(self, x: Array, moments: Array, **ragged: Any) -> None:
            place = fuzz_native.own_bytes(moments)
            if self.fault == "no output's":
                fuzz_native.root(moments)[place.stop] ^= 1
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
        taken["moments"] = fuzz_native.fenced(taken["moments"], 64)
        case = fuzz_native.Case({}, "measure", taken, right=True)
        if not fault:
            assert fuzz_native.check(case)
            continue
        with pytest.raises(AssertionError, match=fault):
            fuzz_native.check(case)


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
