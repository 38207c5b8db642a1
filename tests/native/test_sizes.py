"""Counts and sizes: 0, 1, more than float32 can count, more than 2^31 elements."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernels import (
    compare,
    draw,
    on,
)
from patterns import (
    Array,
    assert_close,
    assert_same_bits,
    run,
)

import truenorm as tn

pytest.importorskip("truenorm._native", reason="the compiled part was not built")
from tools.native_calls import arguments, columns, planes, rows

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("dtype", [pytest.param(np.float16, marks=pytest.mark.slow), np.float32])
@pytest.mark.slow
def test_more_elements_than_float32_can_count(dtype: type) -> None:
    # 2 and 4 in turn, and a 3: the mean is 3, also that of every block, and all other squared deviations are 1.
    n = 2**24 + 1
    x: Array = np.full(n, 3, dtype)
    x[:-1:2], x[1:-1:2] = 2, 4
    for norm, shape in ((tn.batch(), (n, 1)), (tn.layer(), (1, n)), (tn.instance("second"), (1, 1, n))):
        moments = tn.measure(x.reshape(shape), norm)
        assert_same_bits(moments.count.reshape(-1), np.array([n]), f"{norm}: count")
        assert_same_bits(moments.mean.reshape(-1), np.array([3.0]), f"{norm}: mean")
        assert_same_bits(moments.m2.reshape(-1), np.array([n - 1.0]), f"{norm}: m2")
    # With a mask, the count is the kernel's own.
    moments = tn.measure(x[:, None], tn.batch(), valid=np.arange(n) != 5)
    assert_same_bits(moments.count, np.array([n - 1]), "masked: count")
    assert_close(moments.mean, np.array([3 - 1 / (n - 1)]), 1e-12, "masked: mean")
    assert_close(moments.m2, np.array([n - 2 - 1 / (n - 1)]), 1e-6, "masked: m2")
    out = tn.forward(x[:, None], tn.batch(eps=0.0), weight=[2.0], bias=[0.5])
    expected, bound = np.array([-1.5, 2.5, -1.5, 2.5, 0.5]), 4 * float(np.finfo(dtype).eps)
    assert_close(out.y[[0, 1, -3, -2, -1], 0], expected, bound, "y")


def in_subprocess(function: Callable[[], None], *, timeout: float = 120) -> None:
    """Runs a function of this file in a process of its own: a signal is a failure."""
    path = [str(HERE), *sys.path]
    code = f"import sys; sys.path[:0] = {path!r}; import test_sizes; test_sizes.{function.__name__}()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"exit code {done.returncode}:\n{done.stdout}\n{done.stderr}"


RECIPES: list[tuple[tn.Norm, int]] = [  # and the fewest axes that they name
    (tn.batch(), 1),
    (tn.batch("second"), 2),
    (tn.layer(), 1),
    (tn.rms(), 1),
    (tn.instance(), 2),
    (tn.instance("second"), 2),
    (tn.group(1), 2),
    (tn.group(3), 2),
    (tn.group(3, "second"), 2),
]


def compare_small_shapes() -> None:
    shapes = [shape for rank in range(1, 5) for shape in itertools.product((0, 1, 3), repeat=rank) if {0, 1} & {*shape}]
    compared = 0
    for (norm, fewest), shape in itertools.product(RECIPES, shapes):
        dtype = (np.float32, np.float64)[sum(shape) % 2]
        channels = shape[1 if norm.pattern.endswith("[...]") and len(shape) > 1 else -1]
        if len(shape) < fewest or channels % norm.sizes.get("g", 1):
            continue
        layout = norm.view(shape)
        x, dy, parameters = draw(norm, shape, dtype)
        ways: list[dict[str, Any]] = [{}, {"valid": np.zeros(shape, bool)}, {"valid": np.ones(layout.positions, int)}]
        ways.append({"sample_weight": np.full(layout.positions, 2.0), "padding": "keep"})
        if len(shape) == 4:
            del ways[1:3]
        if len(shape) == 3:
            extent = layout.positions[1]
            ways += [{"lengths": np.full(shape[0], length)} for length in {0, extent}]
        for ragged in ways:
            found = []
            for name in ("native", "reference"):
                with on(name):
                    found.append(run(x, dy, norm, **parameters, **ragged))
            compared += 1
            mine, expected = found
            what = f"{norm}, {dtype.__name__}{shape}, {list(ragged)}"
            assert_same_bits(mine.moments.count, expected.moments.count, f"{what}: count")
            compare(mine, expected, x, dy, norm, what=what, **parameters, **ragged)
    assert compared > 2000, compared


@pytest.mark.slow
def test_sizes_of_0_and_1_are_the_same_on_both_engines() -> None:
    in_subprocess(compare_small_shapes)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["columns", "rows", "planes"])
def test_more_than_2_to_the_31_elements(layout: str) -> None:
    # Zeros that were never written take no memory; one output does. The last statistics are those of a small array.
    samples, extent, width = 129, 2**13 + 1, 2**11
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    needed = 8 << 30
    if free < needed:
        pytest.skip(f"needs {needed >> 30} GiB of free memory, there are {free >> 30}")
    sizes = {
        "columns": columns(samples, 1, extent, width),
        "rows": rows(samples, extent, width),
        "planes": planes(samples, 1, width, 1, extent),
    }[layout]
    small = replace(sizes, runs=(1, *sizes.runs[1:]), sequences=1) if layout != "rows" else rows(1, extent, width)
    elements, last = sizes.rows * sizes.width, extent * width
    assert elements > 2**31
    assert last < 2**31
    x, y = np.zeros(elements, np.float16), np.empty(elements, np.float16)
    rng = np.random.default_rng(9)
    x[-last:] = rng.standard_normal(last, np.float32)
    weight = rng.uniform(0.5, 2.0, width)
    there, alone = (arguments("measure", one, "float16", rows=0) for one in (sizes, small))
    there["x"], alone["x"] = x, x[-last:]
    for one, taken in ((sizes, there), (small, alone)):
        one.plan("float16").measure(**taken)
    assert_same_bits(there["moments"][-len(alone["moments"]) :], alone["moments"], "moments")
    moments = there["moments"]
    assert not moments[1 : -len(alone["moments"])][::3].any()  # the means of zeros
    forward = arguments("forward", sizes, "float16", rows=0) | {"x": x, "y": y, "weight": weight, "bias": None}
    sizes.plan("float16").forward(**forward)
    expected = arguments("forward", small, "float16", rows=0) | {"x": x[-last:], "weight": weight, "bias": None}
    expected["y"] = np.empty(last, np.float16)
    small.plan("float16").forward(**expected)
    assert y[-last:].tobytes() == expected["y"].tobytes()
    assert not y[: elements - last : 4097].any()
    del expected
    back = arguments("backward", sizes, "float16", rows=0)
    back |= {"x": x, "dy": x, "dx": y, "moments": moments, "weight": weight, "constant": True}
    y.fill(7)
    sizes.plan("float16").backward(**back)
    assert not y[: elements - last : 4097].any()
    assert_close(back["dbias"].sum(), x[-last:].sum(dtype=float), 1e-5 * last, "dbias")
    assert np.isfinite(y[-last::4097]).all()
    assert y[-last::4097].any()
