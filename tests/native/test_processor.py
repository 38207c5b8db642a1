"""The loops that are chosen are those that the processor can run."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest

native = pytest.importorskip("truenorm._native", reason="the compiled part was not built")

CPUINFO = Path("/proc/cpuinfo")


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64") or not CPUINFO.exists(), reason="needs Linux on an x86 processor"
)
def test_loops_need_the_instructions_that_the_system_lists() -> None:
    (flags,) = re.findall(r"^flags\s*:(.*)$", CPUINFO.read_text(), re.MULTILINE)[:1]
    has = set(flags.split())
    expected = {
        "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "f16c"} <= has,
        "avx2": {"avx2", "f16c"} <= has,
        "baseline": True,
        "unheard-of": False,
    }
    before = native.build_info()["instruction_set"]
    try:
        assert {name: native.select_loops(name) for name in expected} == expected
        assert native.select_loops("")
        best = next(name for name in expected if expected[name])
        assert native.build_info()["instruction_set"] == best
    finally:
        native.select_loops(before)
