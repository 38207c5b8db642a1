"""Numbers of every kind: constants, large means, both ends of the range."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from kernels import (
    BLOCK,
    BLOCK_ROWS,
    CHUNK_ROWS,
    LANES,
    agree,
    along,
    draw,
    on,
    scattered,
)
from patterns import (
    Array,
    assert_close,
    assert_same_bits,
    odd,
    offset_data,
    run,
)

import truenorm as tn

pytest.importorskip("truenorm._native", reason="the compiled part was not built")

CONSTANTS: dict[type, list[float]] = {
    np.float32: [1e-45, 1e-39, 1e-30, 3e-20, 1e-5, 0.1, 1 / 3, 1.0, 1e3 + 0.1, 1e7 + 1, 2.0**24 + 2, 1e19, 1e30, 3e38],
    np.float16: [6e-8, 1e-4, 0.1, 1 / 3, 1000.5, 65504.0],
}
COUNTS = [1, 2, 3, LANES - 1, LANES + 1, BLOCK_ROWS, BLOCK_ROWS + 1, 1000, CHUNK_ROWS + 1, BLOCK + 1, 5000]


@pytest.mark.parametrize("dtype", CONSTANTS)
def test_constants_give_exactly_the_bias(dtype: type, thin: int) -> None:
    rng = np.random.default_rng(6)
    for n, value, sign in itertools.islice(itertools.product(COUNTS, CONSTANTS[dtype], (1, -1)), 0, None, thin):
        for norm, shape in along(n):
            weights = norm.view(shape).weight_shape or ()
            bias: Array = odd(rng, weights).astype(dtype)
            x: Array = np.full(shape, sign * value, dtype)
            out = tn.forward(x, norm, weight=odd(rng, weights) * 1e10, bias=bias)
            spread = bias.reshape([-1 if i == norm.view(shape).channel else 1 for i in range(len(shape))])
            what = f"{norm}, {shape} of {x.flat[0]}"
            assert_same_bits(out.y, np.broadcast_to(spread, shape), what)
            assert (out.moments.mean == float(x.flat[0])).all(), what
            assert not out.moments.m2.any(), what


@pytest.mark.parametrize("dtype", CONSTANTS)
def test_constants_between_garbage_give_exactly_the_bias(dtype: type) -> None:
    for n, value in itertools.product((3, BLOCK_ROWS, BLOCK + 1), CONSTANTS[dtype]):
        valid = scattered(np.random.default_rng(n), n, 2 * n)
        for norm, mask in ((tn.batch(), valid[:, None]), (tn.instance("second"), valid[None, None])):
            bias: Array = np.array([0.5, 0.25, 3.0], dtype).reshape((3,) if norm == tn.batch() else (1, 3, 1))
            x = np.where(mask, dtype(value) * np.ones_like(bias), dtype(np.nan))
            y = tn.forward(x, norm, valid=mask, bias=bias.reshape(-1)).y
            assert_same_bits(y, np.where(mask, bias, dtype(0)), f"{norm}, {n} of {value}")


OFFSETS = {
    "mean 1e3": (1e3, 1.0),
    "mean 1e4": (1e4, 1.0),
    "mean 1e6": (1e6, 1.0),
    "mean 1e8": (1e8, 1.0),
    "mean 1e6, spread 1e-3": (1e6, 1e-3),
    "mean 1e7, spread 1e-2": (1e7, 1e-2),
    "mean -1e5, spread 0.1": (-1e5, 0.1),
    "mean 100, spread 1e-4": (1e2, 1e-4),
}


@pytest.mark.parametrize("name", OFFSETS)
def test_an_offset_costs_no_digits(name: str) -> None:
    mean, std = OFFSETS[name]
    for n, eps in itertools.product((7, 256, 1024, BLOCK + 1), (1e-5, 0.0)):
        for norm, shape in along(n):
            x, dy, parameters = draw(norm, shape, np.float32)
            x = (mean + std * (x - 3) / 1.5).astype(np.float32)
            # In the bound the spread is that of all of x, so all of it is of one kind.
            agree(x, dy, replace(norm, eps=eps), what=name, **parameters)


def test_rows_of_even_steps_at_any_offset() -> None:
    # E[x²] - E[x]² gives -2.37 instead of -1.34 for the first element of the second row.
    for mean, dtype in itertools.product((0.0, 1e2, 1e3, 1e4), (np.float32, np.float64)):
        x = (mean + 1e-3 * np.arange(16)).astype(dtype)[None]
        agree(x, odd(np.random.default_rng(7), x.shape).astype(dtype), tn.layer(eps=1e-12))


def spiky(n: int) -> Array:
    row = np.random.default_rng(n).normal(0, 1e-2, n)
    row[n // 2] = 1e4
    return row


ROWS: dict[str, Callable[[int], Array]] = {
    "near 1e30": lambda n: np.random.default_rng(n).normal(0, 1e30, n),
    "around 1e30": lambda n: np.random.default_rng(n).normal(1e30, 1e27, n),
    "near 2e19, whose squares overflow": lambda n: np.random.default_rng(n).normal(0, 2e19, n),
    "near the end of the range": lambda n: np.random.default_rng(n).uniform(-3.3e38, 3.3e38, n),
    "around 3e38": lambda n: np.random.default_rng(n).uniform(2.9e38, 3.1e38, n),
    "below 1e-19": lambda n: np.random.default_rng(n).normal(0, 1e-20, n),
    "below 1e-19 beside 1": lambda n: 1e-20 * np.random.default_rng(n).normal(1, 1e-3, n),
    "subnormal": lambda n: 1e-45 * np.random.default_rng(n).integers(-3000, 3000, n),
    "zeros": np.zeros,
    "a spike": spiky,
    "a spike at the first place": lambda n: np.roll(spiky(n), -(n // 2)),
    "a spike of 1e30": lambda n: np.where(np.arange(n) == n - 1, 1e30, np.random.default_rng(n).normal(0, 1, n)),
    "large and small in turn": lambda n: np.where(np.arange(n) % 2, 1e-25, 1e25),
}


@pytest.mark.parametrize("name", ROWS)
def test_numbers_of_every_size(name: str) -> None:
    for n, relative_eps in itertools.product((5, 256, 1024, BLOCK + 1), (1e-5, 0.0)):
        row = ROWS[name](n).astype(np.float32)
        spread = float(np.ptp(row.astype(float))) or 1.0
        for norm, shape in along(n)[:5]:
            axis = shape.index(n)
            x = np.broadcast_to(row.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape).copy()
            _, dy, parameters = draw(norm, shape, np.float32)
            dy *= np.float32(min(max(spread, 1e-30), 1.0))  # float32 cannot hold every dx of small data
            agree(x, dy, replace(norm, eps=relative_eps * spread**2), what=f"{name}, {n}", **parameters)


def test_float16_at_both_ends_of_its_range() -> None:
    for low, high, n in itertools.product((300.0, 7600.0, 60000.0, 6e-8, 1e-3), (1.0, 1.05), (5, 1000, BLOCK + 1)):
        for norm, shape in along(n):
            x, dy, parameters = draw(norm, shape, np.float16)
            x = (low * high * np.sign(x - np.float16(3)) * (x > 1)).astype(np.float16)
            spread = float(np.ptp(x.astype(float)))
            dy = (dy * np.float16(min(spread, 1.0))).astype(np.float16)
            agree(x, dy, replace(norm, eps=1e-6 * spread**2), **parameters)


def test_large_cotangents_are_summed_as_far_as_their_sum_goes() -> None:
    # The sum of half of them leaves float32, that of all does not.
    n = 6 * BLOCK_ROWS
    x = np.resize(np.array([1.0, -1.0, 0.5, 0.25], np.float32), n)
    dy = np.repeat(np.array([1e38, -1e38], np.float32), n // 2)
    for norm, shape in ((tn.batch(), (n, 1)), (tn.instance("second"), (1, 1, n)), (tn.layer(), (1, n))):
        weights = norm.view(shape).weight_shape
        agree(x.reshape(shape), dy.reshape(shape), norm, weight=np.full(weights, 0.01), bias=np.zeros(weights))
    # Of rows, it is the sums of dweight and dbias over many of them.
    rows = np.stack([x, -x, 0.3 * x], axis=1)
    agree(rows, np.stack([dy, dy, dy], axis=1), tn.layer(), weight=np.full(3, 0.01), bias=np.zeros(3))


def test_channels_further_apart_than_float64_holds_are_one_group() -> None:
    # The channels of a group are merged at once, around the mean of the first.
    x = np.broadcast_to([1.5e308, -1.5e308, -1.5e308, 1.5e308], (2, 3, 4)).copy()
    moments = tn.measure(x, tn.group(1))
    assert (moments.mean == 0).all()
    assert (moments.m2 == np.inf).all()
    assert not tn.forward(x, tn.group(1)).y.any()


def test_given_moments_are_subtracted_in_two_parts() -> None:
    # Float32 holds neither mean; running statistics are such numbers.
    for n in (3, BLOCK + 1):
        for norm, shape in along(n):
            statistics = norm.view(shape).statistics
            moments = tn.Moments.from_variance(np.full(statistics, 1e6 + 0.03), np.full(statistics, 1e-4))
            x, dy, parameters = draw(norm, shape, np.float32)
            x = (1e6 + 0.0625 * np.round(x)).astype(np.float32)
            mine = run(x, dy, norm, moments=moments, **parameters)
            with on("reference"):
                expected = run(x.astype(float), dy.astype(float), norm, moments=moments, **parameters)
            bound = 16 * np.finfo(np.float32).eps * np.abs(expected.y).max()
            assert_close(mine.y, expected.y, bound, f"{norm}: y")
            assert_close(mine.dx, expected.dx, 16 * np.finfo(np.float32).eps * np.abs(expected.dx).max(), f"{norm}: dx")


def test_moments_that_one_pattern_measured_serve_another() -> None:
    # The statistics of both have the shape (2, 4); the first keeps them in another order.
    rng = np.random.default_rng(8)
    moments = tn.measure(offset_data(rng, (2, 3, 4, 5)), tn.Norm("c [h] b [w]"))
    x = offset_data(rng, (2, 7, 4))
    plain = tn.Moments(moments.count, moments.mean, moments.m2)
    mine, expected = (tn.forward(x, tn.Norm("b [t] c"), moments=one) for one in (moments, plain))
    assert_same_bits(mine.y, expected.y, "y")


@pytest.mark.parametrize("width", [3, LANES, 100])
def test_a_row_beyond_float_changes_no_bit_of_those_beside_it(width: int) -> None:
    rng = np.random.default_rng(31)
    norm = tn.layer(eps=0.0)
    x = offset_data(rng, (9, width)).astype(np.float32)
    dy, weight, bias = (odd(rng, shape).astype(np.float32) for shape in ((9, width), (width,), (width,)))
    plain = run(x, dy, norm, weight=weight, bias=bias)
    for place in (0, 4, 8):
        other = x.copy()
        other[place] *= np.float32(1e-36)  # its rstd is 1e36
        found, kept = run(other, dy, norm, weight=weight, bias=bias), np.arange(9) != place
        for name in ("y", "dx"):
            one, two = getattr(found, name), getattr(plain, name)
            assert_same_bits(one[kept], two[kept], f"{name} beside row {place}")
            assert np.isfinite(one).all() or name == "dx"
        assert_close(found.y[place], plain.y[place], 1e-3, "y of the row")
