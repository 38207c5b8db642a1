"""Degenerate cases: nothing is valid, arrays are empty, or there are too few elements for a variance."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from oracle import oracle_backward, positions
from patterns import (
    PATTERNS,
    ULP,
    Results,
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
from ways import unmasked

import truenorm as tn


def assert_zeros(found: Results, what: str) -> None:
    """Zeros everywhere: output, gradients, statistics."""
    for name in ("y", "dx", "dweight", "dbias"):
        result = getattr(found, name)
        if result is not None:
            assert_same_bits(result, np.zeros(result.shape), f"{what}: {name}")
    empty = np.zeros(found.moments.shape)
    assert_same_moments(found.moments, tn.Moments(empty.astype(found.moments.count.dtype), empty, empty), what)


DEGENERATE: list[dict[str, Any]] = [
    {"eps": eps, "center": center, "ddof": ddof, "eps_at": eps_at}
    for eps, center, ddof, eps_at in itertools.product((0.0, 0.3), (True, False), (0, 1), ("var", "std"))
    if center or not ddof
]


@pytest.mark.parametrize("name", PATTERNS)
def test_no_valid_element_gives_zeros(name: str, thin: int) -> None:
    pattern, rng = PATTERNS[name], np.random.default_rng(9)
    x, dy, parameters = offset_data(rng, pattern.shape), odd(rng, pattern.shape), pattern.parameters(rng)
    for conventions in every(DEGENERATE, thin):
        norm = replace(pattern.norm, **conventions)
        for valid in (np.zeros(pattern.shape, bool), np.zeros(pattern.positions, int)):
            assert_zeros(run(x, dy, norm, valid=valid, **parameters), f"{norm}")
            weights = rng.uniform(1, 2, pattern.positions)
            assert_zeros(run(x, dy, norm, valid=valid, sample_weight=weights, **parameters), f"{norm}")
            kept = run(x, dy, norm, valid=valid, padding="keep", **parameters)
            assert_same_bits(kept.y, x, f"{norm}, kept: y")
            assert_same_bits(kept.dx, dy, f"{norm}, kept: dx")
        if pattern.has_lengths:
            assert_zeros(run(x, dy, norm, lengths=[0, 0, 0, 0], **parameters), f"{norm}, lengths")


@pytest.mark.parametrize("name", PATTERNS)
def test_empty_arrays_have_empty_results(name: str, thin: int) -> None:
    pattern, rng = PATTERNS[name], np.random.default_rng(10)
    for axis, conventions in itertools.product(range(len(pattern.shape)), every(DEGENERATE, thin)):
        norm = replace(pattern.norm, **conventions)
        shape = tuple(0 if i == axis else size for i, size in enumerate(pattern.shape))
        layout, x = norm.view(shape), np.zeros(shape)
        parameters = {}
        if layout.weight_shape is not None:
            parameters = {name: odd(rng, layout.weight_shape) for name in ("weight", "bias")}
        for arguments in ({}, {"valid": np.ones(shape, bool)}, {"sample_weight": np.ones(layout.positions)}):
            found = run(x, x, norm, **arguments, **parameters)
            assert found.y.shape == found.dx.shape == shape
            assert_zeros(found, f"{norm}, {shape}")
            merged = tn.merge(found.moments, found.moments)
            assert_same_moments(merged, found.moments, f"{norm}, {shape}, merged")


def test_there_may_be_no_sequences() -> None:
    none: list[int] = []
    assert_zeros(run(np.zeros((0, 5, 3)), np.zeros((0, 5, 3)), tn.instance(), lengths=none), "lengths")
    for norm in (tn.batch(), tn.instance(), tn.group(3), tn.layer()):
        assert_zeros(run(np.zeros((0, 3)), np.zeros((0, 3)), norm, offsets=[0]), "offsets")
        assert_zeros(run(np.zeros((0, 3)), np.zeros((0, 3)), norm, offsets=[0, 0, 0]), "empty sequences")
        assert_zeros(run(np.zeros((5, 0)), np.zeros((5, 0)), norm, offsets=[0, 2, 5]), "no channels")
    positions = run(np.zeros((0, 3)), np.zeros((0, 3)), tn.Norm("[b] t c"), offsets=[0, 0, 0])
    assert positions.moments.shape == (0, 3)


@pytest.mark.parametrize("norm", [tn.batch(), tn.instance(), tn.layer()], ids=str)
def test_weights_of_packed_rows_may_keep_the_channel_axis(norm: tn.Norm) -> None:
    rng = np.random.default_rng(15)
    x, dy, weights = offset_data(rng, (6, 3)), odd(rng, (6, 3)), rng.uniform(0.5, 2.0, 6)
    expected = run(x, dy, norm, offsets=[0, 2, 6], sample_weight=weights)
    assert_same_results(run(x, dy, norm, offsets=[0, 2, 6], sample_weight=weights[:, None]), expected, f"{norm}")


@pytest.mark.parametrize("name", PATTERNS)
def test_degenerate_statistics_match_the_oracle(name: str, thin: int) -> None:
    # Constant data, so m2 = 0; at most one element; and sample weights of 1/8, whose sum is below ddof.
    pattern, rng = PATTERNS[name], np.random.default_rng(11)
    dy, parameters = odd(rng, pattern.split), pattern.parameters(rng)
    one = np.zeros(pattern.shape, bool)
    one.flat[one.size // 2] = True
    eighth = np.full(pattern.positions, 0.125)
    plain = unmasked(pattern)
    chosen = {
        "all": plain,
        "one element": replace(plain, arguments={"valid": one}, valid=one.reshape(pattern.split)),
        "weights of 1/8": replace(plain, arguments={"sample_weight": eighth}, sample_weight=pattern.fill(eighth)),
    }
    data = {"a constant": np.full(pattern.split, 7.1), "zeros": np.zeros(pattern.split)}
    data["any data"] = offset_data(rng, pattern.split)
    crossed = itertools.product(chosen.items(), data.items(), DEGENERATE)
    for (kind, way), (sort, x), conventions in every(crossed, thin * (1 if dy.size < 100 else 5)):
        norm = replace(pattern.norm, **conventions)
        check(pattern, norm, way, x, dy, parameters, what=f"{norm}, {kind}, {sort}")


def test_too_few_elements_for_ddof_give_the_bias_and_no_gradient() -> None:
    x, dy, bias = np.array([[3.0, 8.0]]), np.array([[2.0, 5.0]]), np.array([0.1, 0.7])
    for arguments in ({}, {"valid": [True]}, {"sample_weight": [0.5]}, {"sample_weight": [1.0]}):
        found = run(x, dy, tn.batch(ddof=1), weight=np.full(2, 1e10), bias=bias, **arguments)
        assert_same_bits(found.y, bias[None], "y")
        assert_same_bits(found.dx, np.zeros((1, 2)), "dx")
        assert_same_bits(found.moments.var(1), np.zeros(2), "var")
        assert_same_bits(found.dweight, np.zeros(2), "dweight")
        assert_same_bits(found.dbias, dy[0], "dbias")
    barely = run(x, dy, tn.batch(ddof=1, eps=0.25), weight=np.full(2, 1e10), sample_weight=[1 + 2**-52])
    assert_same_bits(barely.y, np.zeros((1, 2)), "y")
    assert_same_bits(barely.moments.count, np.full(2, 1 + 2**-52), "count")


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("count", [None, 2, 7, [3, 5], 2.5])
def test_from_variance_gives_moments_with_that_variance(ddof: int, count: Any) -> None:
    mean, var = np.array([1.5, -2.0]), np.array([0.25, 3.0])
    moments = tn.Moments.from_variance(mean, var, count=count, ddof=ddof)
    assert_close(moments.var(ddof), var, 2 * ULP * var, "var")
    assert_same_bits(moments.mean, mean, "mean")
    assert_close(moments.count, np.broadcast_to(1 + ddof if count is None else count, 2), 0, "count")
    assert moments.count.dtype == (np.float64 if count == 2.5 else np.int64)


def test_from_variance_divides_by_the_count_by_default() -> None:
    moments = tn.Moments.from_variance([1.0], [4.0], count=8)
    assert_same_moments(moments, tn.Moments([8], np.ones(1), np.array([32.0])), "moments")
    assert_same_bits(moments.var(), np.array([4.0]), "var")
    assert_same_bits(tn.Moments.from_variance([1.0], [4.0]).count, np.array([1]), "count")


def test_the_variance_of_too_few_elements_is_zero() -> None:
    moments = tn.Moments.from_variance([1.0, 1.0], [4.0, 4.0], count=[1, 2], ddof=1)
    assert_same_moments(moments, tn.Moments([1, 2], np.ones(2), np.array([0.0, 4.0])), "moments")
    assert_same_bits(moments.var(1), np.array([0.0, 4.0]), "var")
    assert_same_bits(tn.Moments([0, 1], np.zeros(2), np.zeros(2)).var(), np.zeros(2), "var")


def test_the_oracle_gives_zeros_if_nothing_is_valid() -> None:
    # A test of the oracle: a comparison with NaN would prove nothing.
    pattern = PATTERNS["batch (b t c)"]
    none = np.zeros(pattern.split, bool)
    dx, dweight, dbias = oracle_backward(none, none, pattern.case(pattern.norm), valid=none)
    assert not any(dx[i] for i in positions(dx.shape))
    assert not dweight.any()
    assert not dbias.any()


# ---- values that are not finite, or whose squared deviations are not ----

NORMS: list[tuple[tn.Norm, tuple[int, ...]]] = [
    (tn.batch(), (5, 1)),
    (tn.layer(), (1, 5)),
    (tn.instance("second"), (1, 1, 5)),
    (tn.batch("second"), (5, 1, 1)),
    (tn.batch(eps_at="std"), (5, 1)),
    (tn.instance(eps=0.0, ddof=1), (1, 5, 1)),
]
HUGE: dict[str, list[float]] = {
    "both ends of the range": [1.7e308, -1.7e308, -1.7e308, -1.7e308, -1.7e308],
    "around 1e308": [1e308, 1.1e308, 1.5e308, 1.7e308, 1.2e308],
    "beside small ones": [1e308, -1e308, 1.5e308, 2.0, 0.0],
    "1e200": [1e200, -1e200, 3e200, 0.0, 1.0],
    "the largest": [np.finfo(float).max] * 4 + [1e308],
}


@pytest.mark.parametrize("weights", [None, [0.5, 1.0, 2.0, 1.0, 0.25]])
@pytest.mark.parametrize("name", HUGE)
def test_squared_deviations_that_overflow_give_the_bias(name: str, weights: list[float] | None) -> None:
    values = np.array(HUGE[name])
    expected = np.average(values / 16, weights=weights) * 16
    for norm, shape in NORMS:
        layout = norm.view(shape)
        given = {} if weights is None or norm.pattern == "... [c]" else {"sample_weight": np.array(weights)}
        given = {key: one.reshape(layout.positions) for key, one in given.items()}
        mean = expected if given else np.average(values / 16) * 16
        weight, bias = np.full(layout.weight_shape or (), 3.0), np.full(layout.weight_shape or (), 0.75)
        found = run(values.reshape(shape), np.ones(shape), norm, weight=weight, bias=bias, **given)
        what = f"{norm}, {name}"
        assert_same_bits(found.y, np.full(shape, 0.75), f"{what}: y")
        assert_close(found.dx, np.zeros(shape), 0, f"{what}: dx")
        assert_close(found.dweight, np.zeros(weight.shape), 0, f"{what}: dweight")
        assert_close(
            found.moments.mean, np.full(layout.statistics, mean), 1e-15 * np.abs(values).max(), f"{what}: mean"
        )
        assert (found.moments.m2 == np.inf).all(), what


@pytest.mark.parametrize("weighted", [False, True])
def test_the_mean_of_many_values_whose_squares_overflow_is_exact(weighted: bool) -> None:
    """The first value is far from the mean of the others, so sums around it are large."""
    x = np.concatenate([[-1.47e306], np.random.default_rng(11).normal(0, 1e303, 2000)])
    weights = np.full(2001, 0.75)
    mean = math.fsum(x / 2001)
    for norm, shape in ((tn.batch(), (2001, 1)), (tn.instance(), (1, 2001, 1)), (tn.Norm("b c [t]"), (1, 1, 2001))):
        s = weights.reshape(norm.view(shape).positions) if weighted else None
        moments = tn.measure(x.reshape(shape), norm, sample_weight=s)
        assert_close(moments.mean, np.full(moments.shape, mean), 2 * ULP * 1.47e306, f"{norm}: mean")
        assert (moments.m2 == np.inf).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    "values", [[np.inf] * 5, [-np.inf] * 5, [1, np.inf, 2, 3, 4], [1, 2, 3, 4, -np.inf], [np.nan] * 5]
)
def test_statistics_of_values_that_are_not_finite_are_nan(values: list[float], dtype: type) -> None:
    for norm, shape in NORMS:
        given: Any
        for given in ({}, {"sample_weight": np.ones(norm.view(shape).positions)}):
            moments = tn.measure(np.array(values, dtype).reshape(shape), norm, **given)
            assert np.isnan(moments.mean).all(), f"{norm}: mean {moments.mean}"
            assert np.isnan(moments.m2).all(), f"{norm}: m2 {moments.m2}"


def test_means_further_apart_than_float64_holds_are_merged() -> None:
    low, high = (tn.Moments([n], [value], [0.0]) for n, value in ((1, -1.7e308), (3, 1.7e308)))
    merged = tn.merge(low, high)
    assert_close(merged.mean, [0.85e308], 1e293, "mean")
    assert merged.m2 == np.inf
    # The kernels merge blocks of 64 rows.
    x = np.repeat([-1.7e308, 1.7e308], 64)[:, None]
    assert_close(tn.measure(x, tn.batch()).mean, [0.0], 1e293, "mean of two blocks")


def test_a_huge_value_of_weight_0_costs_no_precision() -> None:
    x = np.array([[1e308, 3e-310]])
    moments = tn.measure(x, "b [t]", sample_weight=np.array([[0.0, 1.0]]))
    assert_same_bits(moments.mean, np.array([3e-310]), "mean")


@pytest.mark.skipif(np.finfo(np.longdouble).maxexp <= 1024, reason="long double is no wider than float64 here")
def test_values_beyond_float64_have_exact_moments() -> None:
    moments = tn.measure(np.ldexp(np.array([[1.0, 2.0, 6.0]], np.longdouble), 1100), "b [t]")
    assert moments.mean[0] == np.ldexp(np.longdouble(3), 1100)
    assert moments.m2[0] == np.ldexp(np.longdouble(14), 2200)


def test_elements_of_weight_0_have_a_gradient_beside_an_infinite_sum() -> None:
    """Σ dy overflows. An element of weight 0 takes no part in the mean, so its gradient does not contain the sum."""
    x, dy = np.array([[1.0], [2.0], [3.0], [5.0]]), np.array([[1e308], [1e308], [1e308], [2.0]])
    found = run(x, dy, tn.batch(), sample_weight=[1.0, 1.0, 1.0, 0.0])
    rstd = 1 / np.sqrt(2 / 3 + 1e-5)
    assert_close(found.dx[3], [2.0 * rstd], ULP, "dx")


def test_zero_has_no_sign() -> None:
    found = run(np.array([[-0.0], [3.0]]), np.ones((2, 1)), tn.rms())
    assert_same_bits(found.y[0], np.zeros(1), "y")


def test_squares_that_underflow_contribute_nothing_through_the_deviation() -> None:
    """m2 is 0, though x is not: rstd is 1 / eps, a constant, so a feature of weight 0 has the gradient 0."""
    x, dy = np.array([[2e-168, 3e-168, -4e-168]]), np.array([[-0.5, 0.4, 0.9]])
    norm = tn.rms(eps=1e-12, eps_at="std")
    found = run(x, dy, norm, weight=np.array([0.25, 0.0, 1.0]), sample_weight=[1000.0])
    assert_same_bits(found.dx, np.array([[-0.125e12, 0.0, 0.9e12]]), "dx")
