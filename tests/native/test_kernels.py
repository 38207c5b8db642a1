"""The compiled kernels: every tail and threshold of their loops, numbers of every kind.

They are held to the reference on the same, already rounded, numbers. Their bits are the matter of `test_threads.py`,
wrong calls that of `test_native_calls.py`.
"""

import itertools
import math
import os
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patterns import (
    ULP,
    Array,
    Results,
    Shape,
    assert_close,
    assert_same_bits,
    assert_same_statistics,
    magnitude,
    odd,
    offset_data,
    rounding,
    run,
)

import truenorm as tn
from truenorm import engine
from truenorm.core.mask import mask_input
from truenorm.core.reference import rstd_of

_native = pytest.importorskip("truenorm._native", reason="the compiled part was not built")
from tools.fuzz_native import Sizes, arguments, columns, from_brain, planes, rows, stored  # noqa: E402

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1] / "src/truenorm/native"
# What the kernels cut their work into. A round of lanes is 128 bytes: 32 floats.
LANES, BLOCK, TILE, BLOCK_ROWS, CHUNK_ROWS, GROUP = 32, 2048, 512, 64, 512, 8
PIECE_OF_PLANES = 8192
STREAMED = 2**24  # bytes of an output from which on it is written past the caches
DTYPES = (np.float16, np.float32, np.float64)


@contextmanager
def on(name: Any) -> Iterator[None]:
    """An engine for a while."""
    before = engine.engine()
    engine.use(name)
    try:
        yield
    finally:
        engine.use(before)


@pytest.fixture(autouse=True)
def on_native() -> Iterator[None]:
    with on("native"):
        yield


# ---- how they are compared ----


def agree(x: Array, dy: Array, norm: tn.Norm, *, what: str = "", **told: Any) -> Results:
    """All results of the kernels against the reference's on the same numbers."""
    before = x.tobytes(), dy.tobytes()
    mine = run(x, dy, norm, **told)
    assert before == (x.tobytes(), dy.tobytes()), f"{what}: an input was modified"
    with on("reference"):
        expected = run(x.astype(float), dy.astype(float), norm, **told)
    compare(mine, expected, x, dy, norm, what=f"{norm}, {x.dtype}{x.shape}, {list(told)} {what}", **told)
    return mine


def compare(
    mine: Results, expected: Results, x: Array, dy: Array, norm: tn.Norm, *, what: str, spacing: Any = None, **told: Any
) -> None:
    """As in `patterns.check`: a rounding of the data's size reaches xhat through rstd.

    The kernels subtract a mean in two parts, so what is rounded is of the size of the deviations, not of the mean.
    spacing: from a number to the next one, where NumPy does not know the dtype of y and dx.
    """
    dtype = x.dtype.type if spacing is None else np.float32
    ragged = {name: told[name] for name in ("valid", "lengths", "sample_weight") if name in told}
    chosen = mask_input(x.astype(float), norm, **ragged)
    real = chosen.x if chosen.valid is None else chosen.x[np.broadcast_to(chosen.valid, chosen.x.shape)]
    largest, narrow = float(np.abs(expected.moments.mean).max(initial=0.0)), rounding(dtype) > ULP
    size = magnitude(np.append(real, expected.moments.mean), dtype) + (0.0 if narrow else largest)
    rstd = float(rstd_of(expected.moments, norm).max(initial=0.0))
    condition, weight = 1 + size * rstd, float(np.abs(told.get("weight", np.ones(1))).max(initial=0.0))
    sizes = np.abs(chosen.arrange(dy))
    ulps = 16 * rounding(dtype) * condition
    for name, bound in (("y", ulps * (weight + 2)), ("dx", ulps * weight * rstd * sizes.max(initial=0.0))):
        found, wanted = getattr(mine, name), getattr(expected, name)
        if spacing is not None:
            half = 0.5 * spacing(wanted)
        else:
            assert found.dtype == dtype, f"{what}: {name} is {found.dtype}"
            half = 0.0 if dtype is np.float64 else 0.5 * np.spacing(np.abs(wanted).astype(dtype)).astype(float)
        assert_close(found, wanted, bound + half, f"{what}: {name}")
    total = sizes.sum(chosen.layout.unweighted).reshape(chosen.layout.weight_shape or ())
    for name, factor in (("dweight", condition), ("dbias", 1.0)):
        found, wanted = getattr(mine, name), getattr(expected, name)
        assert (found is None) == (wanted is None), f"{what}: {name}"
        if found is not None:
            assert_close(found, wanted, 16 * rounding(dtype) * factor * total, f"{what}: {name}")
    assert_same_statistics(mine.moments, expected.moments, real, what, dtype)


def draw(norm: tn.Norm, shape: Shape, dtype: type, seed: int = 1) -> tuple[Array, Array, dict[str, Array]]:
    """x, dy, and weight and bias."""
    rng = np.random.default_rng([seed, *shape])
    weights = norm.view(shape).weight_shape or ()
    parameters = {"weight": odd(rng, weights), "bias": odd(rng, weights)}
    return offset_data(rng, shape).astype(dtype), odd(rng, shape).astype(dtype), parameters


def around(*numbers: int) -> list[int]:
    return [number + step for number in numbers for step in (-1, 0, 1)]


def scattered(rng: np.random.Generator, count: int, of: int) -> Array:
    """So many that are valid, among more."""
    valid = np.zeros(of, bool)
    valid[rng.choice(of, count, replace=False)] = True
    return valid


def test_the_thresholds_are_those_of_the_sources() -> None:
    # Otherwise the sizes below go past them.
    text = "".join(file.read_text("utf-8") for file in sorted(SOURCES.glob("*.[hi]*")))
    for name in ("BLOCK", "TILE", "BLOCK_ROWS", "CHUNK_ROWS", "GROUP", "PIECE_OF_PLANES"):
        found = re.findall(rf"constexpr \S+ {name} = (\d+);", text)
        assert found == [str(globals()[name])], name
    assert re.findall(r"using Many = Lanes<A, (\d+)>", text) == [str(4 * LANES)]
    assert re.findall(r"STREAMED_BYTES = std::int64_t\{1\} << (\d+);", text) == [str(STREAMED.bit_length() - 1)]


def test_what_is_compared_can_differ() -> None:
    norm, shape = tn.layer(), (3, 4 * LANES + 3)
    x, dy, parameters = draw(norm, shape, np.float32)
    with on("reference"):
        expected = run(x.astype(float), dy.astype(float), norm, **parameters)
    short = x.copy()
    short[:, -1] = 0  # as if a tail had been lost
    for mine in (run(short, dy, norm, **parameters), run(x, np.where(short == 0, 0, dy), norm, **parameters)):
        with pytest.raises(AssertionError, match="off by"):
            compare(mine, expected, x, dy, norm, what="lost", **parameters)


# ---- tails and thresholds ----


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_tail_of_the_lanes(dtype: type, thin: int) -> None:
    # Contiguous elements of one statistic, with one weight and with a weight each; and rows of that many columns.
    for n in range(1, 4 * LANES + 4)[::thin]:
        for norm, shape in (
            (tn.layer(eps=1e-3), (3, n)),
            (tn.rms(), (3, n)),
            (tn.group(2, "second"), (2, 2 * n)),
            (tn.instance("second"), (2, 3, n)),
            (tn.batch("second"), (3, 2, n)),
            (tn.batch(), (3, n)),
        ):
            x, dy, parameters = draw(norm, shape, dtype)
            agree(x, dy, norm, **parameters)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_tail_of_the_lanes_before_padding(dtype: type, thin: int) -> None:
    norm = tn.group(2, "second", eps_at="std")
    for n in range(1, 4 * LANES + 4)[:: 2 * thin]:
        shape = (2, 4, n + 5)
        x, dy, parameters = draw(norm, shape, dtype)
        x[:, :, n:], dy[:, :, n:] = np.nan, np.inf
        lengths = np.array([n, n // 2])
        x[1, :, n // 2 :], dy[1, :, n // 2 :] = np.inf, np.nan
        agree(x, dy, norm, lengths=lengths, **parameters)
        valid = np.arange(n + 5) < lengths[:, None]
        agree(x, dy, norm, valid=valid, sample_weight=np.where(valid, 1.5, 0.0), **parameters)


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_along_a_contiguous_axis(dtype: type, thin: int) -> None:
    rng = np.random.default_rng(2)
    for n in around(BLOCK, 2 * BLOCK)[::thin]:
        for norm, shape in ((tn.layer(), (2, n)), (tn.rms(), (2, n)), (tn.group(2, "second"), (2, 2 * n))):
            x, dy, parameters = draw(norm, shape, dtype)
            agree(x, dy, norm, **parameters)
            agree(x, dy, norm, valid=np.arange(len(x)) != 1, **parameters)
        for norm in (tn.instance("second"), tn.batch("second"), tn.group(1, "second")):
            shape = (2, 2, n + 9)
            x, dy, parameters = draw(norm, shape, dtype)
            agree(x[..., 9:], dy[..., 9:], norm, **parameters)
            agree(x, dy, norm, lengths=[n, n % BLOCK], **parameters)
            valid = np.stack([scattered(rng, n, n + 9), np.arange(n + 9) >= 9])
            agree(x, dy, norm, valid=valid, **parameters)
            agree(x, dy, norm, valid=valid, sample_weight=rng.choice([0.0, 0.5, 2.0], valid.shape), **parameters)


@pytest.mark.parametrize("dtype", DTYPES)
def test_pieces_of_planes(dtype: type) -> None:
    # Channels of which just so many, one fewer and one more make a piece, and the last piece is not full.
    rng = np.random.default_rng(6)
    for channels, positions in (
        (GROUP + 1, 3),
        (129, 64),
        (128, 64),
        (127, 64),
        (3 * GROUP - 1, 1000),
        (3, PIECE_OF_PLANES),
    ):
        for norm in (tn.batch("second"), tn.instance("second"), tn.batch("second", ddof=1)):
            x, dy, parameters = draw(norm, (3, channels, positions), dtype)
            agree(x, dy, norm, **parameters)
            agree(x, dy, norm, lengths=[positions, 0, positions // 2], **parameters)
            agree(x, dy, norm, valid=rng.random((3, positions)) < 0.7, **parameters)
    for groups, channels, positions in ((86, 2 * 86, 50), (33, 3 * 33, 100)):
        x, dy, parameters = draw(tn.group(groups, "second"), (2, channels, positions), dtype)
        agree(x, dy, tn.group(groups, "second"), **parameters)
        agree(x, dy, tn.group(groups, "second"), lengths=[positions, 7], **parameters)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tiles_of_columns(dtype: type, thin: int) -> None:
    rng = np.random.default_rng(3)
    for width in around(LANES, 4 * LANES, TILE, 2 * TILE)[::thin]:
        for norm, shape in ((tn.batch(), (3, 5, width)), (tn.instance(), (2, 5, width)), (tn.layer(), (3, 5, width))):
            x, dy, parameters = draw(norm, shape, dtype)
            valid = rng.random(shape[:2]) < 0.6
            agree(x, dy, norm, **parameters)
            agree(x, dy, norm, valid=valid, **parameters)
            agree(x, dy, norm, valid=valid, sample_weight=rng.choice([0.5, 2.0], shape[:2]), **parameters)
    # Groups that end inside a tile, and one that is wider than a tile.
    for groups, width in (
        (1, TILE + 1),
        (2, 2 * TILE),
        (3, 3 * 43),
        (5, TILE + 3),
        (TILE + 1, TILE + 1),
    ):
        norm, shape = tn.group(groups), (2, 5, width)
        x, dy, parameters = draw(norm, shape, dtype)
        agree(x, dy, norm, **parameters)
        agree(x, dy, norm, lengths=[3, 5], **parameters)


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_and_chunks_of_rows(dtype: type, thin: int) -> None:
    rng = np.random.default_rng(4)
    for number in around(GROUP, BLOCK_ROWS, 2 * BLOCK_ROWS, CHUNK_ROWS, 2 * CHUNK_ROWS)[::thin]:
        for norm, width in (
            (tn.batch(ddof=1), 3),
            (tn.layer(), 5),
            (tn.rms(), 4),
            (tn.Norm("[b] (g [c])", sizes={"g": 2}), 6),
        ):
            x, dy, parameters = draw(norm, (number + 40, width), dtype)
            agree(x[:number], dy[:number], norm, **parameters)
            valid = scattered(rng, number, number + 40)
            x[~valid], dy[~valid] = np.nan, np.nan
            agree(x, dy, norm, valid=valid, **parameters)
            times = np.where(valid, rng.choice([0.0, 0.5, 2.0], number + 40), np.nan)
            agree(x, dy, norm, valid=valid, sample_weight=times, **parameters)
        for norm in (tn.instance(), tn.group(2), tn.batch()):
            x, dy, parameters = draw(norm, (3, number + 7, 4), dtype)
            agree(x, dy, norm, lengths=[number, 0, max(number - BLOCK_ROWS + 2, 1)], **parameters)


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_sequences_that_all_begin_and_end_within_blocks(dtype: type, thin: int) -> None:
    rng = np.random.default_rng(5)
    lengths = rng.integers(0, 40, 90)
    for norm, shape in (
        (tn.batch(), (90, 41, 3)),
        (tn.layer(), (90, 41, 3)),
        (tn.instance(), (90, 41, 3)),
        (tn.batch("second"), (90, 3, 41)),
        (tn.group(3, "second"), (90, 6, 41)),
    ):
        x, dy, parameters = draw(norm, shape, dtype)
        agree(x, dy, norm, lengths=lengths, **parameters)
        agree(x, dy, norm, lengths=lengths, padding="keep", **parameters)


# Lengths that are no multiple of a cache line, so that lines are shared by what is valid and what is not.
@pytest.mark.parametrize(
    ("norm", "each"),
    [(tn.batch(), (50, 103)), (tn.layer(), (50, 103)), (tn.instance("second"), (7, 731)), (tn.layer(), (1, 5153))],
)
@pytest.mark.parametrize("padding", ["zero", "keep"])
def test_outputs_that_are_written_past_the_caches(
    norm: tn.Norm, each: Shape, padding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A part of them is not; with the moments and sums of the whole, both have the same bits.
    monkeypatch.setattr(np, "empty_like", lambda like: np.full_like(like, np.nan))  # what is not written shows
    monkeypatch.setattr(
        np, "empty", lambda shape, dtype=float: np.full(shape, np.nan if np.dtype(dtype).kind == "f" else 0, dtype)
    )
    samples = STREAMED // (4 * math.prod(each)) + 1
    x, dy, parameters = draw(norm, (samples, *each), np.float32)
    extent = norm.view(x.shape).positions[1]
    lengths = np.random.default_rng(6).integers(0, extent + 1, samples)
    lengths[: samples // 2] = extent  # so that there are whole sequences side by side, too
    told = {"padding": padding, **parameters}
    whole = tn.forward(x, norm, lengths=lengths, **told)
    dx, sums = tn.backward(dy, whole)[0], tn.backward_sums(dy, whole)
    assert whole.y.nbytes >= STREAMED
    assert np.isfinite(whole.y).all()
    assert np.isfinite(dx).all()
    for part in (slice(0, 3), slice(samples // 2 - 2, samples // 2 + 9), slice(samples - 5, None)):
        shared = len(whole.moments.shape) == 1  # by all samples: a batch norm
        out = tn.forward(x[part], norm, lengths=lengths[part], moments=whole.moments if shared else None, **told)
        assert_same_bits(out.y, whole.y[part], f"y of {part}")
        assert_same_bits(tn.backward(dy[part], out, sums=sums if shared else None)[0], dx[part], f"dx of {part}")


def test_products_of_unusual_sizes_that_are_usual_together() -> None:
    # weight and rstd are multiplied first: dy · weight, or (x - mean) · rstd, would leave float32 on the way.
    rng = np.random.default_rng(7)
    x, dy = rng.standard_normal((9, 16)), rng.standard_normal((9, 16))
    for scale, weight, cotangent, eps in ((1e15, 1e10, 1e30, 1e-5), (1e-15, 1e-18, 1e-28, 0.0)):
        norm, told = tn.layer(eps=eps), {"weight": np.full(16, weight)}
        large = (x * scale).astype(np.float32), (dy * cotangent).astype(np.float32)
        mine = run(*large, norm, **told)
        with on("reference"):
            expected = run(*(one.astype(float) for one in large), norm, **told)
        np.testing.assert_allclose(mine.dx, expected.dx, rtol=1e-3, atol=1e-5 * np.abs(expected.dx).max())
    fixed = tn.Moments.from_variance(np.zeros(8), np.full(8, 1e-40))
    wide = tn.forward(np.full((8, 16), 1e30, "f"), tn.layer(eps=0), moments=fixed, weight=np.full(16, 1e-25))
    np.testing.assert_allclose(wide.y, 1e25, rtol=1e-6)


def test_numbers_beyond_a_dtype_are_infinite_without_a_warning() -> None:
    x = np.arange(6.0, dtype=np.float32).reshape(3, 2)
    for bias in (np.zeros(2, ">f4"), np.zeros(2, np.float16), np.zeros(2, np.float32)):
        out = tn.forward(x, tn.batch(), bias=bias)
        for dy in (np.full((3, 2), 1e300), np.full((3, 2), 3e38, np.float32)):
            assert np.isinf(tn.backward(dy, out)[2]).all()  # type: ignore[arg-type]
            assert np.isinf(tn.backward(dy, out, sums=tn.backward_sums(dy, out))[2]).all()  # type: ignore[arg-type]


def test_moments_of_a_kernel_are_moments_like_any_other() -> None:
    x = np.array([[1.0], [2.0], [5.0]], np.float32)
    gone = weakref.ref(x)
    moments = tn.measure(x, tn.batch())
    y = tn.forward(x, tn.batch(), moments=moments, bias=moments.mean).y  # a view of what the kernel reads
    assert y.mean() == pytest.approx(8 / 3, rel=1e-6)
    other = replace(moments, mean=moments.mean + 1)
    assert (tn.forward(x, tn.batch(), moments=other).y < tn.forward(x, tn.batch(), moments=moments).y).all()
    del x
    assert gone() is None, "moments keep their x alive"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("norm", "shape"), [(tn.batch(), (1, 7)), (tn.layer(), (7, 1)), (tn.instance("second"), (3, 5, 1))], ids=str
)
def test_the_gradient_of_a_lone_element_is_exactly_0(norm: tn.Norm, shape: Shape, dtype: type) -> None:
    x, dy, told = draw(norm, shape, dtype)
    dx, dweight, _ = tn.backward(dy, tn.forward(x, norm, **told))
    assert not dx.any()
    assert dweight is not None
    assert not dweight.any()


def test_moments_of_another_normalization_are_not_taken_for_this_ones() -> None:
    x, dy, weight = (np.random.default_rng(i).standard_normal((6, 4)) for i in range(3))
    out = replace(tn.forward(x, tn.batch(eps=1e-3), weight=weight[0]), moments=tn.measure(x, tn.batch(eps=10.0)))
    masked = replace(out, masked=mask_input(x, tn.batch(eps=1e-3), valid=np.arange(6) < 4))
    for one in (out, masked):
        found = tn.backward(dy, one)
        with on("reference"):
            for ours, theirs in zip(found[:2], tn.backward(dy, one)[:2], strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)  # type: ignore[arg-type]


# ---- bfloat16, which NumPy does not have ----


def brain_spacing(values: Array) -> Array:
    """From one bfloat16 to the next."""
    return np.exp2(np.floor(np.log2(np.maximum(np.abs(values), 2.0**-126))) - 7)


BRAIN: dict[str, tuple[Sizes, tn.Norm, Shape]] = {
    "columns": (columns(1, 1, 1025, 130), tn.batch(), (1025, 130)),
    "columns, groups": (columns(3, 1, 70, 2, 65), tn.group(2), (3, 70, 130)),
    "rows": (rows(1, 67, BLOCK + 1), tn.layer(), (67, BLOCK + 1)),
    "rows, few": (rows(1, 3, 35), tn.rms(), (3, 35)),
    "planes": (planes(3, 1, 5, 1, BLOCK + 1), tn.instance("second"), (3, 5, BLOCK + 1)),
    "planes, reduced": (planes(1, 7, 5, 1, 33), tn.batch("second"), (7, 5, 33)),
}


@pytest.mark.parametrize("name", BRAIN)
def test_bfloat16_is_summed_in_float32_and_rounded_once(name: str) -> None:
    sizes, norm, shape = BRAIN[name]
    x, dy, parameters = draw(norm, shape, np.float32)
    bits = {"x": stored(x.reshape(-1), "bfloat16"), "dy": stored(dy.reshape(-1), "bfloat16")}
    x, dy = (from_brain(one).reshape(shape) for one in bits.values())
    plan = sizes.plan("bfloat16", center=norm.center)
    there = arguments("forward", sizes, "bfloat16") | parameters | {"x": bits["x"]}
    plan.forward(**there)
    back = (
        arguments("backward", sizes, "bfloat16") | bits | {"moments": there["moments"], "weight": parameters["weight"]}
    )
    plan.backward(**back)
    statistics = norm.view(shape).statistics
    count, mean, m2 = there["moments"].reshape(-1, 3).T.reshape(3, *statistics)
    y, dx = (from_brain(one).reshape(shape) for one in (there["y"], back["dx"]))
    mine = Results(y, dx, back["dweight"], back["dbias"], tn.Moments(count, mean, m2))
    with on("reference"):
        expected = run(x.astype(float), dy.astype(float), norm, **parameters)
    compare(mine, expected, x, dy, norm, what=name, spacing=brain_spacing, **parameters)
    alone = arguments("measure", sizes, "bfloat16") | {"x": bits["x"]}
    plan.measure(**alone)
    assert_same_bits(alone["moments"], there["moments"], f"{name}: measured alone")


def scaled(dtype: str, weight: float) -> tuple[Array, Array]:
    """Every number that a 16-bit dtype can store, and what a kernel makes of its product with the weight."""
    bits = np.arange(2**16, dtype=np.uint16)
    x = bits if dtype == "bfloat16" else bits.view(np.float16)
    sizes = columns(1, 1, len(x), 1)
    fixed = {"x": x, "moments": np.array([1.0, 0.0, 1.0]), "weight": np.array([weight]), "bias": None, "given": True}
    taken = arguments("forward", sizes, dtype) | fixed
    sizes.plan(dtype, eps=0.0).forward(**taken)
    return x, taken["y"]


# Powers of two send normal numbers to ties between subnormal ones; 1e6 and 1e38 beyond the range.
@pytest.mark.parametrize("weight", [1.0, 1 / 3, 2.0**-1, 2.0**-12, 2.0**-25, 1e-5, 1e6])
def test_every_half_is_read_and_written_as_numpy_does(weight: float) -> None:
    x, y = scaled("float16", weight)
    with np.errstate(all="ignore"):
        expected = (x.astype(np.float32) * np.float32(weight) + np.float32(0)).astype(np.float16)
    assert_same_bits(np.isnan(y), np.isnan(expected), "NaN")
    assert_same_bits(y[~np.isnan(y)], expected[~np.isnan(y)], f"times {weight}")


@pytest.mark.parametrize("weight", [1.0, 1 / 3, 257 / 256, 1 + 2.0**-9, 2.0**-30, 3e38])
def test_every_bfloat16_is_read_and_written_to_the_nearest(weight: float) -> None:
    bits, y = scaled("bfloat16", weight)
    # A power of two below what float32 holds with all digits is computed in double: exact before it is rounded.
    with np.errstate(all="ignore"):
        exact = (from_brain(bits).astype(float) * float(np.float32(weight))).astype(np.float32)
    down = (exact.view(np.uint32) >> 16).astype(np.uint16)
    rest = exact.view(np.uint32) & 0xFFFF
    up = (rest > 0x8000) | ((rest == 0x8000) & (down % 2 == 1))
    numbers = ~np.isnan(exact)
    expected = np.where(exact == 0, 0, down + up).astype(np.uint16)  # -0 + 0 is 0
    assert np.isnan(from_brain(y)[~numbers]).all()
    assert_same_bits(y[numbers], expected[numbers], f"times {weight}")


# ---- all kinds of numbers ----

CONSTANTS: dict[type, list[float]] = {
    np.float32: [1e-45, 1e-39, 1e-30, 3e-20, 1e-5, 0.1, 1 / 3, 1.0, 1e3 + 0.1, 1e7 + 1, 2.0**24 + 2, 1e19, 1e30, 3e38],
    np.float16: [6e-8, 1e-4, 0.1, 1 / 3, 1000.5, 65504.0],
}
COUNTS = [1, 2, 3, LANES - 1, LANES + 1, BLOCK_ROWS, BLOCK_ROWS + 1, 1000, CHUNK_ROWS + 1, BLOCK + 1, 5000]


def along(n: int) -> list[tuple[tn.Norm, Shape]]:
    """n elements of one statistic, in every layout."""
    return [
        (tn.batch(), (n, 3)),
        (tn.layer(), (2, n)),
        (tn.instance("second"), (2, 3, n)),
        (tn.batch("second"), (3, 2, n)),
        (tn.instance(), (2, n, 3)),
        (tn.group(2), (2, n, 4)),
        (tn.group(2, "second"), (2, 4, n)),
    ]


@pytest.mark.parametrize("dtype", CONSTANTS)
def test_constants_give_exactly_the_bias(dtype: type, thin: int) -> None:
    rng = np.random.default_rng(6)
    for n, value, sign in itertools.islice(itertools.product(COUNTS, CONSTANTS[dtype], (1, -1)), 0, None, thin):
        for norm, shape in along(n):
            weights = norm.view(shape).weight_shape
            bias = odd(rng, weights).astype(dtype)
            x = np.full(shape, sign * value, dtype)
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
        for norm, real in ((tn.batch(), valid[:, None]), (tn.instance("second"), valid[None, None])):
            bias = np.array([0.5, 0.25, 3.0], dtype).reshape((3,) if norm == tn.batch() else (1, 3, 1))
            x = np.where(real, dtype(value) * np.ones_like(bias), dtype(np.nan))
            y = tn.forward(x, norm, valid=real, bias=bias.reshape(-1)).y
            assert_same_bits(y, np.where(real, bias, dtype(0)), f"{norm}, {n} of {value}")


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


# ---- counts and sizes ----


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_more_elements_than_float32_can_count(dtype: type) -> None:
    # 2 and 4 in turn, and a 3: the mean is 3, also that of every block, and all other squared deviations are 1.
    n = 2**24 + 1
    x = np.full(n, 3, dtype)
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
    assert_close(out.y[[0, 1, -3, -2, -1], 0], np.array([-1.5, 2.5, -1.5, 2.5, 0.5]), 4 * np.finfo(dtype).eps, "y")


def in_subprocess(function: Callable[[], None], *, timeout: float = 120) -> None:
    """Runs a function of this file in a process of its own: a signal is a failure."""
    path = [str(HERE), *sys.path]
    code = f"import sys; sys.path[:0] = {path!r}; import test_kernels; test_kernels.{function.__name__}()"
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
        told: list[dict[str, Any]] = [{}, {"valid": np.zeros(shape, bool)}, {"valid": np.ones(layout.positions, int)}]
        told.append({"sample_weight": np.full(layout.positions, 2.0), "padding": "keep"})
        if len(shape) == 4:
            del told[1:3]
        if len(shape) == 3:
            extent = layout.positions[1]
            told += [{"lengths": np.full(shape[0], length)} for length in {0, extent}]
        for ragged in told:
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


def test_sizes_of_0_and_1_are_the_same_on_both_engines() -> None:
    in_subprocess(compare_small_shapes)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["columns", "rows", "planes"])
def test_more_than_2_to_the_31_elements(layout: str) -> None:
    # Zeros that nobody wrote take no memory; one output does. The last statistics are those of a small array.
    samples, extent, width = 3, 2**19 + 1, 2**11
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
    for begin in range(elements - last, elements, 2**26):
        x[begin : begin + 2**26] = rng.standard_normal(min(2**26, elements - begin), np.float32)
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
