"""The kernels' activations: units in the last place, the same bits on every instruction set, and what is not finite."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("truenorm._native", reason="the compiled part was not built")

import truenorm as tn
from truenorm import _native
from truenorm.core.activation import ACTIVATIONS, activate, derive

Array = np.ndarray[Any, Any]
MOMENTS = tn.Moments(np.array([1]), np.zeros(1), np.ones(1))  # with eps = 0: y = activation(x)
SMOOTH = ("gelu", "silu", "tanh")
VALUES = 5  # units in the last place
SLOPES = 2.5  # machine epsilons, absolute: near its zeros a derivative is a difference


def computed(activation: str, x: Array) -> tuple[Array, Array]:
    """activation(x) and its derivative."""
    norm = tn.Norm("[n] c", eps=0, activation=activation)  # type: ignore[arg-type]
    out = tn.forward(x[:, None], norm, moments=MOMENTS)
    return out.y[:, 0], tn.backward(np.ones_like(out.y), out)[0][:, 0]


def everywhere(seed: int, size: int) -> Array:
    """Around 0, over the range in which an activation bends, and far into its tails."""
    rng = np.random.default_rng(seed)
    parts = [rng.uniform(-1, 1, size), rng.uniform(-16, 16, size), rng.normal(size=size) * 1e-4]
    return np.concatenate([*parts, rng.uniform(-90, 90, size), [0.0, 1e30, -1e30]])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_float32_is_close_to_float64(activation: str) -> None:
    x = everywhere(1, 20_000).astype(np.float32)
    wide, eps = x.astype(np.float64), float(np.finfo(np.float32).eps)
    y, slope = computed(activation, x)
    exact = activate(activation, wide)
    underflow = 64 * 2.0**-149  # of what is made of numbers that are next to it
    assert bool((np.abs(y - exact) <= VALUES * np.spacing(np.abs(y)) + underflow).all())
    assert np.abs(slope - derive(activation, np.ones_like(wide), wide)).max() <= SLOPES * eps


@pytest.mark.parametrize("activation", SMOOTH)
def test_float64_is_close_to_exact_numbers(activation: str) -> None:
    mp = pytest.importorskip("mpmath", reason="mpmath is not installed")
    x = everywhere(2, 150)[:-2]
    with mp.workprec(200):
        functions: dict[str, Callable[[Any], Any]] = {
            "gelu": lambda z: z * mp.erfc(-z / mp.sqrt(2)) / 2,
            "silu": lambda z: z / (1 + mp.exp(-z)),
            "tanh": mp.tanh,
        }
        function = functions[activation]
        points = [mp.mpf(float(one)) for one in x]
        exact = [function(one) for one in points]
        slopes = [mp.diff(function, one, h=mp.mpf(2) ** -60) for one in points]
        y, slope = computed(activation, x)
        for got, wanted in zip(y, exact, strict=True):
            assert abs(mp.mpf(float(got)) - wanted) <= VALUES * max(math.ulp(float(got)), 8 * 2.0**-1074)
        for got, wanted in zip(slope, slopes, strict=True):
            assert abs(mp.mpf(float(got)) - wanted) <= SLOPES * 2.0**-52


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_instruction_set_gives_the_same_bits(dtype: Any) -> None:
    x = everywhere(3, 501)[:-2].astype(dtype)  # not a multiple of any register
    before, found = _native.build_info()["instruction_set"], {}
    try:
        for name in ("baseline", "avx2", "avx512"):
            if _native.select_loops(name):
                found[name] = [one.tobytes() for activation in ACTIVATIONS for one in computed(activation, x)]
    finally:
        assert _native.select_loops(before)
    assert all(one == found["baseline"] for one in found.values())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_limits(activation: str, dtype: Any) -> None:
    y, slope = computed(activation, np.array([math.nan, math.inf, 0.0, 200.0, -800.0, -math.inf], dtype))
    assert math.isnan(y[0])
    assert y[1] == (1 if activation == "tanh" else math.inf)
    assert y[2] == 0
    assert y[3] == (1 if activation == "tanh" else 200)
    assert y[4] == y[5] == (-1 if activation == "tanh" else 0)  # float16 makes -inf of -70000
    assert slope[3] == pytest.approx(0 if activation == "tanh" else 1, abs=1e-30)
    assert abs(float(slope[4])) < 1e-300
