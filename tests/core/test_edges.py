"""Extreme values: garbage in the padding, constants, NaN and inf, and the ends of the range of every dtype."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from patterns import (
    PATTERNS,
    RECIPES,
    ULP,
    Array,
    Pattern,
    assert_close,
    assert_same_bits,
    assert_same_moments,
    assert_same_results,
    check,
    every,
    odd,
    offset_data,
    run,
)
from ways import PACKED, unmasked, ways

import truenorm as tn
from truenorm import engine

GARBAGE = (np.nan, np.inf, -np.inf, 1e38, -1e300)
CENTERED = {name: pattern for name, pattern in RECIPES.items() if pattern.norm.center}


@pytest.mark.parametrize("name", PATTERNS)
def test_invalid_elements_are_never_read(name: str, thin: int) -> None:
    pattern, rng = PATTERNS[name], np.random.default_rng(1)
    x, dy, parameters = offset_data(rng, pattern.shape), odd(rng, pattern.shape), pattern.parameters(rng)
    found = [(kind, way) for kind, way in ways(pattern, rng) if way.valid is not None and not kind.startswith(PACKED)]
    norms = [pattern.norm, replace(pattern.norm, eps=0.01, eps_at="std"), replace(pattern.norm, center=False)]
    garbage = rng.choice(GARBAGE, pattern.shape)
    for (kind, way), norm in every(itertools.product(found, norms), thin):
        assert way.valid is not None
        what, valid = f"{norm}, {kind}", way.valid.reshape(pattern.shape)
        arguments: dict[str, Any] = dict(way.arguments)
        clean = run(np.where(valid, x, 0.0), np.where(valid, dy, 0.0), norm, **arguments, **parameters)
        assert np.isfinite(clean.y).all(), what
        assert not clean.y[~valid].any(), what
        assert not clean.dx[~valid].any(), what
        if way.sample_weight is not None and "element" not in kind:  # weights have no channel axis
            by_position = [one if pattern.channel is None else one.take(0, pattern.channel) for one in (valid, garbage)]
            arguments["sample_weight"] = np.where(by_position[0], arguments["sample_weight"], by_position[1])
        dirty_x, dirty_dy = np.where(valid, x, garbage), np.where(valid, dy, garbage[::-1])
        assert_same_results(run(dirty_x, dirty_dy, norm, **arguments, **parameters), clean, what)
        assert_same_moments(tn.measure(dirty_x, norm, **arguments), clean.moments, what)
        kept = run(dirty_x, dirty_dy, norm, padding="keep", **arguments, **parameters)
        assert_same_bits(kept.y, np.where(valid, clean.y, dirty_x), f"{what}, kept: y")
        assert_same_bits(kept.dx, np.where(valid, clean.dx, dirty_dy), f"{what}, kept: dx")


def test_valid_elements_are_read() -> None:
    # The test above would pass on a layer that ignores its input.
    x = offset_data(np.random.default_rng(2), (4, 5, 3))
    valid = np.ones((4, 5), bool)
    before = run(x, x, tn.batch(), valid=valid)
    x[2, 3, 1] = 1e38
    with pytest.raises(AssertionError, match="other bits"):
        assert_same_results(run(x, x, tn.batch(), valid=valid), before, "a valid element changed")
    valid[2, 3] = False
    with pytest.raises(AssertionError, match="other bits"):
        assert_same_moments(tn.measure(x, tn.batch(), valid=valid), before.moments, "the mask changed")


def test_weight_zero_is_left_out_but_normalised() -> None:
    x = np.array([[1.0], [5.0], [9.0], [np.nan]])
    moments = tn.measure(x, tn.batch(), sample_weight=[1.0, 1.0, 0.0, 0.0])
    assert_same_moments(moments, tn.Moments([2.0], np.array([3.0]), np.array([8.0])), "moments")
    y = tn.forward(x, tn.batch(eps=0), sample_weight=[1.0, 1.0, 0.0, 0.0]).y
    assert_same_bits(y, np.array([[-1.0], [1.0], [3.0], [np.nan]]), "y")


def test_nan_in_a_statistic_does_not_reach_the_weight_of_an_invalid_element() -> None:
    # The row's statistic is NaN, but its element 1 is not valid: dweight[1] comes from the other row alone.
    x = np.array([[np.nan, 5.0, 1.0], [1.0, 2.0, 4.0]])
    valid = np.array([[True, False, True], [True, True, True]])
    found = run(x, np.ones((2, 3)), tn.layer(), valid=valid, weight=np.array([1.0, 2.0, 3.0]))
    alone = run(x[1:], np.ones((1, 3)), tn.layer(), weight=np.array([1.0, 2.0, 3.0]))
    assert np.isnan(found.dweight[[0, 2]]).all()
    assert_close(found.dweight[1], alone.dweight[1], 4 * ULP, "dweight")


def test_padding_beside_large_numbers_does_not_overflow() -> None:
    # (0 - 1e300) · 1e10 is inf, but xhat is not needed where x is not valid.
    x, dy = np.array([[1e300], [1e300], [0.0]]), np.array([[1.0], [2.0], [4.0]])
    padded = run(x, dy, tn.batch(eps=1e-20), valid=[True, True, False], weight=[1.5])
    alone = run(x[:2], dy[:2], tn.batch(eps=1e-20), weight=[1.5])
    assert np.isfinite(alone.dx).all()
    assert_same_results(replace(padded, y=padded.y[:2], dx=padded.dx[:2]), alone, "padded")


CONSTANTS: dict[Any, list[float]] = {
    np.float16: [0.1, -65504.0, 6e-8],
    np.float32: [0.1, 1e7 + 1, 3e38, -3e38, 1e-45, 16777217.0],
    np.float64: [0.0, -0.0, 0.1, 1 / 3, -1e6, 1e-310, 5e-324, 1e8 + 0.1, 1e150, -1e300],
}


@pytest.mark.parametrize("name", CENTERED)
def test_constants_are_exact(name: str, thin: int) -> None:
    pattern, rng = RECIPES[name], np.random.default_rng(3)
    dy, parameters = odd(rng, pattern.shape), pattern.parameters(rng)
    parameters["weight"] = parameters["weight"] * 1e10
    biases = parameters["bias"].reshape([-1 if i == pattern.channel else 1 for i in range(dy.ndim)])
    constants = [(dtype, value) for dtype, values in CONSTANTS.items() for value in values]
    found_ways = [(kind, way) for kind, way in ways(pattern, rng) if not kind.startswith(PACKED)]
    conventions: list[dict[str, Any]] = [
        {"eps": eps, "ddof": ddof, "eps_at": eps_at}
        for eps, ddof, eps_at in ((1e-5, 0, "var"), (1e-12, 1, "var"), (0.0, 0, "var"), (1e-8, 0, "std"))
    ]
    crossed = itertools.product(constants, found_ways, conventions)
    for (dtype, value), (kind, way), options in every(crossed, thin * 5):
        norm = replace(pattern.norm, **options)
        found = run(np.full(pattern.shape, value, dtype), dy, norm, **way.arguments, **parameters)
        valid = np.ones(dy.shape, bool) if way.valid is None else way.valid.reshape(dy.shape)
        what = f"{norm}, {kind}, {dtype.__name__} {value}"
        assert_same_bits(found.y, np.where(valid, biases, 0.0).astype(dtype), f"{what}: y")
        assert not found.moments.m2.any(), what
        assert set(np.unique(found.moments.mean)) <= {0.0, float(dtype(value))}, what
        assert_same_bits(found.dweight, np.zeros(parameters["bias"].shape), f"{what}: dweight")
        assert not np.isnan(found.dx).any(), what


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10, 49, 1000, 4097, 70000])
def test_constants_are_exact_at_any_count(count: int) -> None:
    values = np.array([0.1, 1 / 3, 1e-310, 1e16 + 2, 1e150, 1e300, np.pi])
    x = np.broadcast_to(values, (count, len(values)))
    bias = np.arange(1, 8) / 7
    out = tn.forward(x, tn.batch(eps=1e-30), weight=np.full(7, 1e10), bias=bias)
    assert_same_bits(out.y, np.broadcast_to(bias, x.shape), "y")
    assert_same_moments(out.moments, tn.Moments(np.full(7, count), values, np.zeros(7)), "moments")


@pytest.mark.parametrize("sample_weight", [None, [0.3, 0.3, 0.3]])
@pytest.mark.parametrize("value", [np.finfo(np.float64).max, 1e-310, 5e-324])
def test_constants_are_exact_at_both_ends_of_the_range(value: float, sample_weight: list[float] | None) -> None:
    # The sum overflows for the largest number and underflows for the smallest; the mean does neither.
    out = tn.forward(np.full((3, 1), value), tn.batch(), sample_weight=sample_weight)
    assert_same_bits(out.moments.mean, np.array([value]), "mean")
    assert_same_bits(out.y, np.zeros((3, 1)), "y")


def test_a_part_is_exactly_itself_at_the_end_of_the_range() -> None:
    part = tn.Moments(2**40, 1e300, 0.0)
    assert_same_moments(tn.merge(part, tn.Moments(0, 0.0, 0.0)), part, "merged")


def test_overflow_of_the_squares_is_visible() -> None:
    for values in ([1e200, -1e200], [1e287, 2e287, -5e287], [3e160] * 70 + [-1e170]):
        for norm, x in ((tn.batch(), np.array(values)[:, None]), (tn.layer(), np.array([values]))):
            out = tn.forward(x, norm)
            assert (out.moments.m2 == np.inf).all()
            assert (out.y == 0).all()


OFFSETS = {
    "float32 [40000..40003]": (np.float32, 40000.0 + np.arange(4.0)),
    "mean 2000": (np.float32, 2000 + np.random.default_rng(4).normal(size=20)),
    "mean 1e8, std 1": (np.float64, np.random.default_rng(5).normal(1e8, 1.0, 50)),
    "mean 1e8, std 1, float32": (np.float32, np.random.default_rng(5).normal(1e8, 1.0, 50)),
    "mean 1e15, std 1": (np.float64, np.random.default_rng(5).normal(1e15, 1.0, 50)),
    **{f"{mean} + i/1000": (np.float32, mean + np.arange(16) * 1e-3) for mean in (0, 1e2, 1e3, 1e4)},
    "base 1e6, spread 1e-3": (np.float64, np.random.default_rng(6).uniform(1e6, 1e6 + 1e-3, 256)),
    "base 1e7, spread 1e-2": (np.float64, np.random.default_rng(6).uniform(1e7, 1e7 + 1e-2, 256)),
    "float32 near 1e30": (np.float32, np.random.default_rng(7).normal(0, 1e30, 20)),
    "float32 near its end": (np.float32, np.random.default_rng(7).uniform(-3.4e38, 3.4e38, 20)),
    "float32 beyond the root of its end": (np.float32, np.random.default_rng(7).normal(1e20, 1e19, 20)),
    "float64 near 1e150": (np.float64, np.random.default_rng(7).normal(1e150, 1e150, 20)),
    "float64 near 1e-150": (np.float64, np.random.default_rng(7).normal(1e-150, 1e-150, 20)),
    "float32 deviations below 1e-19": (np.float32, np.random.default_rng(7).normal(0, 1e-25, 20)),
    "float32 subnormals": (np.float32, np.random.default_rng(7).normal(0, 1e-42, 20)),
    "float16 subnormals": (np.float16, np.random.default_rng(7).normal(0, 1e-6, 20)),
    **{f"float16 near {size}": (np.float16, size * np.linspace(0.9, 1, 20)) for size in (300, 7600, 60000)},
    "one spike": (np.float32, np.array([1e-2, -1e-2, 1e4, 3e-2, -2e-2])),
    "a row of zeros": (np.float32, np.zeros(6)),
}


@pytest.mark.parametrize("name", OFFSETS)
def test_results_are_accurate_at_any_offset_and_scale(name: str) -> None:
    # y and dx against the oracle on the rounded input, the bound growing with |mean| / std and no faster.
    dtype, row = OFFSETS[name]
    row = row.astype(dtype).astype(float)
    n, rng = len(row), np.random.default_rng(8)
    dy = odd(rng, (n,)).astype(dtype).astype(float)
    spread = float(np.ptp(row)) or 1.0
    layouts = [Pattern(tn.layer(), f"b:1 c:{n}*+"), Pattern(tn.batch(), f"b:{n}* c:1+")]
    layouts.append(Pattern(tn.instance("second"), f"b:1 c:1+ t:{n}*"))
    for pattern, relative_eps in itertools.product(layouts, (0.0, 1e-10, 1e-2)):
        # Relative to the data: 1e-5 would dominate data of size 1e-20.
        norm = replace(pattern.norm, eps=relative_eps * spread**2)
        # dx of small data may overflow a narrow dtype.
        scale = spread if dtype is not np.float64 else 1.0
        cotangent = (dy * min(scale, 1.0)).astype(dtype).astype(float).reshape(pattern.split)
        x = row.reshape(pattern.split)
        what = f"{norm}, {name}"
        check(pattern, norm, unmasked(pattern), x, cotangent, pattern.parameters(rng), what=what, dtype=dtype)


def test_half_precision_neither_sums_nor_counts_in_half_precision() -> None:
    x = np.zeros((70000, 3), np.float16)
    x[::2] = [65504.0, 1.0, 65504.0]
    x[1::2] = [-65504.0, 1.0, 0.0]
    out = tn.forward(x, tn.batch(eps=0), bias=np.array([0.0, 0.5, 0.0]))
    assert_same_bits(out.moments.count, np.full(3, 70000), "count")
    assert_same_bits(out.moments.mean, np.array([0.0, 1.0, 32752.0]), "mean")
    m2 = 70000 * np.array([65504.0**2, 0.0, 32752.0**2])
    assert_close(out.moments.m2, m2, 0.0 if engine.engine() == "reference" else 2**-22 * m2, "m2")
    assert_same_bits(out.y[:2], np.array([[1.0, 0.5, 1.0], [-1.0, 0.5, -1.0]], np.float16), "y")


def test_float64_subnormals_are_finite_without_a_warning() -> None:
    x = np.array([[5e-324], [1e-310], [-3e-320]])
    for norm in (tn.batch(), tn.batch(eps=0), tn.batch(eps=0, eps_at="std"), tn.batch(eps=0, ddof=1)):
        found = run(x, np.ones((3, 1)), norm, weight=[2.0], bias=[3.0])
        for result in (found.y, found.dx, found.dweight, found.dbias):
            assert np.isfinite(result).all(), norm


def members(pattern: Pattern, at: tuple[int, ...]) -> Array:
    """All elements that share a statistic with the one at this split index."""
    same = np.ones(pattern.split, bool)
    for axis, (_, size, reduced, _) in enumerate(pattern.pieces):
        if not reduced:
            here = np.arange(size) == at[axis]
            same &= here.reshape([-1 if i == axis else 1 for i in range(len(pattern.split))])
    return same.reshape(pattern.shape)


@pytest.mark.parametrize("name", PATTERNS)
def test_nan_and_inf_affect_only_their_own_statistic(name: str) -> None:
    pattern, rng = PATTERNS[name], np.random.default_rng(12)
    clean, dy = offset_data(rng, pattern.shape), odd(rng, pattern.shape)
    parameters = pattern.parameters(rng)
    at = tuple(size // 2 for size in pattern.split)
    flat = np.ravel_multi_index(at, pattern.split)
    here = members(pattern, at)
    kept = tuple(i for i, (_, _, reduced, _) in zip(at, pattern.pieces, strict=True) if not reduced)
    others = np.ones(pattern.statistics, bool)
    others[kept] = False
    for center, bad in itertools.product((True, False), (np.nan, np.inf, -np.inf)):
        norm = replace(pattern.norm, center=center)
        x = clean.copy()
        x.flat[flat] = bad
        expected, found = (run(one, dy, norm, **parameters) for one in (clean, x))
        assert_same_bits(found.y[~here], expected.y[~here], f"{norm}, {bad}: y")
        assert_same_bits(found.dx[~here], expected.dx[~here], f"{norm}, {bad}: dx")
        for one in ("mean", "m2"):
            actual, clean_one = getattr(found.moments, one), getattr(expected.moments, one)
            assert_same_bits(actual[others], clean_one[others], f"{norm}, {bad}: {one}")
        assert not np.isfinite(found.moments.m2[kept])
        assert np.isnan(found.y.flat[flat])
        if center or np.isnan(bad):
            assert np.isnan(found.y[here]).all()
            assert np.isnan(found.dx[here]).all()


def test_a_nan_in_dy_affects_only_its_own_statistic() -> None:
    x, dy = offset_data(np.random.default_rng(13), (5, 3)), np.ones((5, 3))
    dy[2, 1] = np.nan
    found = run(x, dy, tn.batch(), weight=[1.5, 2.0, 2.5], bias=[0.1, 0.2, 0.3])
    assert np.isnan(found.dx[:, 1]).all()
    assert np.isfinite(found.dx[:, [0, 2]]).all()
    assert np.isnan([found.dweight[1], found.dbias[1]]).all()
    assert np.isfinite([found.dweight[[0, 2]], found.dbias[[0, 2]]]).all()


@pytest.mark.parametrize(
    "kind", [list, tuple, bool, np.int8, np.uint64, np.float16, np.float32, np.float64, np.longdouble]
)
def test_numbers_of_every_type_are_accepted(kind: type) -> None:
    numbers = [[1, 0, 1], [0, 0, 1], [1, 1, 0], [1, 0, 0]]
    arguments: list[Any] = [
        kind(one) if kind in (list, tuple) else np.array(one, kind)
        for one in (numbers, numbers[::-1], numbers[0], numbers[1])
    ]
    x, dy, weight, bias = arguments
    found = run(x, dy, tn.batch(eps=0.1), weight=weight, bias=bias)
    floats = [np.array(one, float) for one in (numbers, numbers[::-1], numbers[0], numbers[1])]
    expected = run(floats[0], floats[1], tn.batch(eps=0.1), weight=floats[2], bias=floats[3])
    dtype = np.dtype(kind if isinstance(x, np.ndarray) and x.dtype.kind == "f" else np.float64)
    for name in ("y", "dx", "dweight", "dbias"):
        result = getattr(found, name)
        assert result.dtype == dtype, name
        assert_close(result, getattr(expected, name), 16 * max(float(np.finfo(dtype).eps), ULP), name)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
@pytest.mark.parametrize("other", [np.float16, np.float32, np.float64, np.longdouble])
def test_results_have_the_dtype_of_their_input(dtype: Any, other: Any) -> None:
    rng = np.random.default_rng(14)
    x, dy = offset_data(rng, (7, 3)).astype(dtype), odd(rng, (7, 3)).astype(other)
    weight, bias = odd(rng, (3,)).astype(other), odd(rng, (3,)).astype(np.float32)
    for arguments in ({}, {"valid": rng.random(7) < 0.5, "padding": "keep"}):
        found = run(x, dy, tn.batch(), weight=weight, bias=bias, **arguments)
        assert (found.y.dtype, found.dx.dtype) == (dtype, dtype)
        assert (found.dweight.dtype, found.dbias.dtype) == (other, np.float32)
        assert found.moments.mean.dtype == found.moments.m2.dtype == np.result_type(dtype, np.float64)
        assert found.moments.count.dtype == np.int64


@pytest.mark.skipif(np.finfo(np.longdouble).nmant <= 52, reason="long double is no wider than float64 here")
def test_wider_floats_are_not_narrowed() -> None:
    x = np.array([1, 1 + np.longdouble(2) ** -60], np.longdouble)
    found = run(x, x, tn.layer(eps=0))
    assert_close(found.y, np.array([-1.0, 1.0]), 1e-18, "y")


def test_given_moments_center_before_they_scale() -> None:
    # x · scale + shift would leave ±1 instead of 0 beside a mean of 1e8.
    moments = tn.Moments.from_variance(np.full(2, 1e8 + 0.1), np.array([1e-4, 4.0]))
    out = tn.forward(np.full((3, 2), 1e8 + 0.1), tn.batch(), moments=moments, weight=[1e10, 3.0], bias=[0.1, 0.2])
    assert_same_bits(out.y, np.broadcast_to([0.1, 0.2], (3, 2)), "y")
    assert out.moments is moments


def test_moments_take_array_likes() -> None:
    expected = tn.Moments(np.array([3]), np.array([4.0]), np.array([8.0]))
    assert_same_moments(tn.Moments([3], [4.0], [8.0]), expected, "lists")
    assert_same_moments(tn.Moments(3, np.array([4]), np.array([8])), expected, "integers")
    assert_same_moments(tn.Moments(True, 1, 0), tn.Moments(1, 1.0, 0.0), "a bool")


def test_results_have_a_repr() -> None:
    out = tn.forward([[1.0], [3.0]], tn.batch(eps=0))
    assert repr(out.moments) == "Moments(count=[2], mean=[2.0], m2=[2.0])"
    assert repr(out) == "Normalized(y=array([[-1.],\n       [ 1.]]), moments=Moments(count=[2], mean=[2.0], m2=[2.0]))"


@pytest.mark.parametrize("dtype", [">f2", ">f4", ">f8", "<f4"])
def test_results_have_the_byte_order_of_x(dtype: str) -> None:
    rng = np.random.default_rng(21)
    x, dy, valid = (one.astype(dtype) for one in (rng.normal(size=(4, 3)), rng.normal(size=(4, 3)), np.ones(4)))
    weight: Array = np.array([1.5, 0.5, 2.0], dtype)
    for padding in ("zero", "keep"):
        for ragged in ({}, {"valid": valid > 2}, {"valid": np.arange(4) < 2}):
            found = run(x, dy, tn.batch(), weight=weight, bias=weight, padding=padding, **ragged)
            for name in ("y", "dx", "dweight", "dbias"):
                assert getattr(found, name).dtype == np.dtype(dtype), f"{name}, {padding}, {list(ragged)}"
