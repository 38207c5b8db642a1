"""The law: any partition of the valid elements, merged in any order, gives the same Moments.

It follows that padding, packing, splitting, ordering, repeating or scaling the data changes nothing: up to rounding
in general, and not a single bit for one ragged axis with padding at the end.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Case, oracle_moments
from patterns import (
    LENGTHS,
    PATTERNS,
    RECIPES,
    SEQUENCES,
    ULP,
    Array,
    Pattern,
    Results,
    assert_close,
    assert_close_results,
    assert_same_bits,
    assert_same_moments,
    assert_same_results,
    assert_same_statistics,
    odd,
    offset_data,
    run,
)

import truenorm as tn

SEEDS = st.integers(0, 2**32 - 1)
ROWS = st.integers(0, 40)
CHANNELS = 3


@st.composite
def tables(draw: st.DrawFn, rows: st.SearchStrategy[int] = ROWS) -> Array:
    """(rows, channels) in float64, with offsets and scales from 1e-12 to 1e12."""
    rng = np.random.default_rng(draw(SEEDS))
    offset, scale = (10.0 ** draw(st.integers(-12, 12)) for _ in range(2))
    return rng.normal(offset * rng.choice([-1, 0, 1], CHANNELS), scale, (draw(rows), CHANNELS))


def merge_in_any_order(parts: Sequence[tn.Moments], shuffler: random.Random) -> tn.Moments:
    """Merges random subsets until one is left: any order and any nesting."""
    left = list(parts)
    shuffler.shuffle(left)
    while len(left) > 1:
        cut = shuffler.randint(1, len(left))
        left = [*left[cut:], tn.merge(*left[:cut])]
        shuffler.shuffle(left)
    return left[0]


@given(tables(), st.integers(1, 6), SEEDS, st.booleans())
def test_any_partition_merged_in_any_order_gives_the_moments_of_the_whole(
    x: Array, number: int, seed: int, weighted: bool
) -> None:
    rng, norm = np.random.default_rng(seed), tn.batch()
    part_of = rng.integers(0, number, len(x))  # some parts are empty
    valid = rng.random(len(x)) < 0.8
    sample_weight = rng.choice([0.0, 0.3, 1.7], len(x)) if weighted else None
    whole = tn.measure(x, norm, valid=valid, sample_weight=sample_weight)
    parts = [tn.measure(x, norm, valid=valid & (part_of == i), sample_weight=sample_weight) for i in range(number)]
    assert_same_statistics(merge_in_any_order(parts, random.Random(seed)), whole, x, "marked")
    cut = [
        tn.measure(x[here], norm, sample_weight=None if sample_weight is None else sample_weight[here])
        for here in (valid & (part_of == i) for i in range(number))
    ]
    assert_same_statistics(merge_in_any_order(cut, random.Random(seed)), whole, x, "cut out")
    case = Case([("b", len(x), True), ("c", CHANNELS, False)])
    columns = [None if one is None else np.broadcast_to(one[:, None], x.shape) for one in (valid, sample_weight)]
    found = oracle_moments(x, case, valid=columns[0], sample_weight=columns[1])
    oracle = tn.Moments(*np.array(list(found.values())).T)
    assert_same_statistics(whole, oracle, x, "oracle")


@pytest.mark.parametrize("name", PATTERNS)
def test_the_law_holds_for_every_pattern(name: str) -> None:
    pattern, rng = PATTERNS[name], np.random.default_rng(3)
    x, part_of = offset_data(rng, pattern.shape), rng.integers(0, 4, pattern.shape)
    for center in (True, False):
        norm = replace(pattern.norm, center=center)
        parts = [tn.measure(x, norm, valid=part_of == i) for i in range(5)]  # the last is empty
        for seed in range(3):
            merged = merge_in_any_order(parts, random.Random(seed))
            assert_same_statistics(merged, tn.measure(x, norm), x, f"{norm}")


def test_the_bound_can_fail() -> None:
    # Two common wrong formulas: an average of averages, and E[x²] - E[x]².
    x = np.random.default_rng(4).normal(1e4, 1.0, (9, CHANNELS))
    whole = tn.measure(x, tn.batch())
    parts = [tn.measure(x[cut], tn.batch()) for cut in (slice(0, 2), slice(2, None))]
    average = tn.Moments(whole.count, np.mean([part.mean for part in parts], axis=0), whole.m2)
    with pytest.raises(AssertionError, match="average of averages: mean: off by"):
        assert_same_statistics(average, whole, x, "average of averages")
    squares = tn.Moments(whole.count, whole.mean, 9 * np.abs((x**2).mean(0) - x.mean(0) ** 2))
    with pytest.raises(AssertionError, match="one pass: m2: off by"):
        assert_same_statistics(squares, whole, x, "one pass")


@given(tables(rows=st.integers(1, 20)), st.integers(0, 4), SEEDS)
def test_empty_parts_are_exact(x: Array, empties: int, seed: int) -> None:
    whole = tn.measure(x, tn.batch(), sample_weight=np.random.default_rng(seed).uniform(0.1, 3, len(x)))
    # The mean and m2 of an empty part are not read.
    empty = [tn.measure(x[:0], tn.batch()), tn.Moments(np.zeros(3), np.full(3, np.nan), np.full(3, np.inf))]
    parts = [whole, *(empty[i % 2] for i in range(empties))]
    for seeded in range(3):
        assert_same_moments(merge_in_any_order(parts, random.Random(seeded)), whole, f"{empties} empty parts")


def test_empty_channels_of_a_part_are_ignored() -> None:
    one = tn.Moments([2, 0], np.array([5.0, np.nan]), np.array([1.0, np.nan]))
    two = tn.Moments([0, 3], np.array([np.inf, 7.0]), np.array([np.nan, 4.0]))
    merged = tn.merge(one, two)
    assert_same_moments(merged, tn.Moments(np.array([2, 3]), np.array([5.0, 7.0]), np.array([1.0, 4.0])), "merged")


def test_sums_run_from_the_last_axis_in_pairs() -> None:
    # Any order would be correct, but all implementations must use the same one. Here each order rounds differently.
    out = tn.forward(np.zeros((2, 2, 1)), tn.batch(), bias=[0.0])
    dy = np.array([[[1e16], [1.0]], [[-1e16], [1.0]]])
    assert tn.backward(dy, out)[2] == (1e16 + 1.0) + (-1e16 + 1.0) == 0.0
    out = tn.forward(np.zeros((5, 1)), tn.batch(), bias=[0.0])
    dy = np.array([[1e16], [1.0], [1.0], [1.0], [-1e16]])
    assert tn.backward(dy, out)[2] == ((1e16 + 1.0) + (1.0 + 1.0)) - 1e16 == 2.0


@given(tables(), SEEDS)
def test_marking_elements_invalid_equals_deleting_them(x: Array, seed: int) -> None:
    kept = np.random.default_rng(seed).random(len(x)) < 0.6
    marked, deleted = tn.measure(x, tn.batch(), valid=kept), tn.measure(x[kept], tn.batch())
    assert_same_statistics(marked, deleted, x, "marked")
    # Trailing elements: not even the rounding differs.
    behind = np.concatenate([x[kept], x[~kept]])
    marked = tn.measure(behind, tn.batch(), valid=np.arange(len(x)) < kept.sum())
    assert_same_moments(marked, deleted, "marked behind")


@given(tables(), st.integers(1, 5))
def test_repeating_all_data_keeps_mean_and_variance(x: Array, repeats: int) -> None:
    once, repeated = tn.measure(x, tn.batch()), tn.measure(np.repeat(x, repeats, axis=0), tn.batch())
    expected = tn.Moments(once.count * repeats, once.mean, once.m2 * repeats)
    assert_same_statistics(repeated, expected, x, "repeated")
    weighted = tn.measure(x, tn.batch(), sample_weight=np.full(len(x), repeats))
    assert_same_statistics(weighted, expected, x, "weighted")
    assert_same_statistics(tn.merge(*[once] * repeats), expected, x, "merged")


@given(tables(), SEEDS)
def test_integer_sample_weights_equal_repetitions(x: Array, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights, dy = rng.integers(0, 4, len(x)), odd(rng, x.shape)
    repeated = np.repeat(x, weights, axis=0)
    weighted = tn.measure(x, tn.batch(), sample_weight=weights)
    assert_same_statistics(weighted, tn.measure(repeated, tn.batch()), x, "statistics")
    assert weighted.count.dtype == np.float64
    # A position of weight n is n copies of which the loss sees only the first: its gradient is the sum over all copies.
    # A position of weight 0 is normalised, too.
    out = tn.forward(x, tn.batch(eps=0.1), sample_weight=weights)
    dx, _, _ = tn.backward(dy, out)
    seen = weights > 0
    first = np.cumsum(weights[seen]) - weights[seen]
    long = np.zeros(repeated.shape)
    long[first] = dy[seen]
    moments = tn.measure(repeated, tn.batch())
    whole = tn.forward(repeated, tn.batch(eps=0.1), moments=moments)
    unseen = tn.forward(x[~seen], tn.batch(eps=0.1), moments=moments)
    sums = tn.backward_sums(long, whole) + tn.backward_sums(dy[~seen], unseen)
    copies, _, _ = tn.backward(long, whole, sums=sums)
    expected = np.zeros(x.shape)
    np.add.at(expected, np.repeat(np.arange(len(x)), weights), copies)
    # With weight 0, x reaches the loss only directly, not through the statistics.
    expected[~seen] = tn.backward(dy[~seen], unseen)[0]
    rstd = 1 / np.sqrt(moments.var() + 0.1)
    condition = 1 + np.abs(x).max(initial=0.0) * rstd.max(initial=0.0)
    assert_close(dx, expected, 2**8 * ULP * condition * rstd * 10, "dx")


# Without patterns whose weight covers t: the size of their weight depends on the padding.
PADDED = {
    name: one
    for name, one in SEQUENCES.items()
    if not any(weighted for name, *_, weighted in one.pieces if name == "t")
}


def fit(array: Array, names: list[str], extent: int) -> Array:
    """The array with `extent` positions along its axis t, if it has one: cropped, or padded with NaN."""
    if "t" not in names:
        return array
    t = names.index("t")
    missing = [extent - array.shape[t] if i == t else size for i, size in enumerate(array.shape)]
    if missing[t] > 0:
        return np.concatenate([array, np.full(missing, np.nan)], axis=t)
    return array.take(range(extent), t)


@pytest.mark.parametrize("name", PADDED)
def test_padding_at_the_end_changes_no_bit(name: str, thin: int) -> None:
    pattern, rng = PADDED[name], np.random.default_rng(1)
    x, dy, parameters = offset_data(rng, pattern.split), odd(rng, pattern.split), pattern.parameters(rng)
    weights = pattern.spread(rng.uniform(0.0, 3.0, (4, 5)))
    names = [piece[0] for piece in pattern.pieces]
    kept = [piece[0] for piece in pattern.pieces if not piece[2]]
    conventions: list[Literal["var", "std"]] = ["var", "std"]
    for eps_at, weighted in itertools.product(conventions, (False, True)):
        norm, expected = replace(pattern.norm, eps=0.01, eps_at=eps_at), None
        for extent, content in itertools.product(
            (5, 6, 7, 8, 11, 16, 33)[::thin], (0.0, np.nan, -np.inf, 1e38, 1e300, 0.1)
        ):
            long = replace(pattern, layout=pattern.layout.replace("t:5", f"t:{extent}"))

            def arrange(array: Array, long: Pattern = long, content: float = content) -> Array:
                extent = dict(piece[:2] for piece in long.pieces)["t"]
                return np.where(long.mask(LENGTHS), fit(array, names, extent), content).reshape(long.shape)

            arguments = {"lengths": LENGTHS, **parameters}
            if weighted:
                every = arrange(weights)
                arguments["sample_weight"] = every if long.channel is None else every.take([0], long.channel)
            found = run(arrange(x), arrange(dy), norm, **arguments)
            moments = (found.moments.count, found.moments.mean, found.moments.m2)
            found = replace(
                found,
                y=fit(found.y.reshape(long.split), names, 5),
                dx=fit(found.dx.reshape(long.split), names, 5),
                moments=tn.Moments(*(fit(one, kept, 5) for one in moments)),
            )
            expected = expected or found
            what = f"{norm}, {extent} positions, {content} behind" + ", sample_weight" * weighted
            assert np.isfinite(found.y).all(), what
            assert_same_results(found, expected, what)


# Samples along the first axis, with statistics of their own and a common weight.
PER_SAMPLE = {
    name: one
    for name, one in PATTERNS.items()
    if len(one.words[0]) == 1 and one.pieces[0][0] == "b" and one.pieces[0][2:] == (False, False)
}


@pytest.mark.parametrize("name", PER_SAMPLE)
def test_other_samples_of_the_batch_change_no_bit(name: str) -> None:
    pattern, rng = PER_SAMPLE[name], np.random.default_rng(5)
    x, dy, valid = offset_data(rng, pattern.shape), odd(rng, pattern.shape), rng.random(pattern.shape) < 0.8
    parameters = pattern.parameters(rng)
    together = run(x, dy, pattern.norm, valid=valid, **parameters)
    samples = len(x)
    for mates in ([0], [samples - 1], list(range(samples))[::-1], [0] * 7, [*range(samples)] * 3):
        alone = run(x[mates], dy[mates], pattern.norm, valid=valid[mates], **parameters)
        what = f"{pattern.norm} with samples {mates}"
        assert_same_bits(alone.y, together.y[mates], f"{what}: y")
        assert_same_bits(alone.dx, together.dx[mates], f"{what}: dx")
        for one in ("count", "mean", "m2"):
            expected = getattr(together.moments, one)[mates]
            assert_same_bits(getattr(alone.moments, one), expected, f"{what}: {one}")


@pytest.mark.parametrize("name", PADDED)
def test_the_four_forms_give_the_same_numbers(name: str) -> None:
    pattern, rng = PADDED[name], np.random.default_rng(6)
    norm, mask, parameters = replace(pattern.norm, eps=0.1), pattern.mask(LENGTHS), pattern.parameters(rng)
    x, dy = (np.where(mask, draw(rng, pattern.split), np.nan) for draw in (offset_data, odd))
    wide_x, wide_dy, elements = (one.reshape(pattern.shape) for one in (x, dy, mask))
    expected = run(wide_x, wide_dy, norm, lengths=LENGTHS, **parameters)
    forms = [elements] if pattern.channel is None else [elements, elements.take(0, pattern.channel)]
    for valid in forms:
        found = run(wide_x, wide_dy, norm, valid=valid, **parameters)
        assert_close_results(found, expected, 2**7 * ULP, f"{norm}, valid {valid.shape}")
        assert_same_statistics(found.moments, expected.moments, x[mask], f"{norm}, valid {valid.shape}")
    if not pattern.has_offsets:
        return
    offsets = np.cumsum([0, *LENGTHS])
    found = run(pattern.pack(x, LENGTHS), pattern.pack(dy, LENGTHS), norm, offsets=offsets, **parameters)
    y, dx = (pattern.pack(one.reshape(pattern.split), LENGTHS) for one in (expected.y, expected.dx))
    moments = (expected.moments.count, expected.moments.mean, expected.moments.m2)
    packed = tn.Moments(*(pattern.pack_statistics(one, LENGTHS) for one in moments))
    expected = Results(y, dx, expected.dweight, expected.dbias, packed)
    assert_close_results(found, expected, 2**7 * ULP, f"{norm}, packed")
    assert_same_statistics(found.moments, packed, x[mask], f"{norm}, packed")


@pytest.mark.parametrize(
    ("last", "second"),
    [
        (tn.batch(), tn.batch("second")),
        (tn.instance(), tn.instance("second")),
        (tn.group(2), tn.group(2, "second")),
        (tn.Norm("b h w [c]"), tn.Norm("b [c] h w")),
        (tn.Norm("b [h w c]"), tn.Norm("b [c h w]")),
    ],
)
def test_channels_last_and_second_agree(last: tn.Norm, second: tn.Norm) -> None:
    rng = np.random.default_rng(7)
    x, dy, valid = offset_data(rng, (3, 2, 5, 4)), odd(rng, (3, 2, 5, 4)), rng.random((3, 2, 5)) < 0.8
    parameters = {"weight": odd(rng, (4,)), "bias": odd(rng, (4,))}
    one = run(x, dy, last, valid=valid, **parameters)
    other = run(np.moveaxis(x, -1, 1), np.moveaxis(dy, -1, 1), second, valid=valid, **parameters)
    other = replace(other, y=np.moveaxis(other.y, 1, -1), dx=np.moveaxis(other.dx, 1, -1))
    assert_close_results(other, one, 2**7 * ULP, f"{second}")


@given(SEEDS, st.permutations(range(4)), st.lists(st.booleans(), min_size=4, max_size=4).filter(any))
def test_permuting_axes_permutes_the_results(seed: int, order: list[int], reduced: list[bool]) -> None:
    names, rng = "bthc", np.random.default_rng(seed)
    words = [f"[{name}]" if inside else name for name, inside in zip(names, reduced, strict=True)]
    x, dy = offset_data(rng, (4, 5, 2, 3)), odd(rng, (4, 5, 2, 3))
    parameters = {"weight": odd(rng, (3,)), "bias": odd(rng, (3,))}
    arguments = {"lengths": LENGTHS, "sample_weight": rng.uniform(0, 2, (4, 5, 2, 1)), **parameters}
    expected = run(x, dy, tn.Norm(" ".join(words), eps=0.1), **arguments)
    arguments["sample_weight"] = arguments["sample_weight"].transpose(order)
    norm = tn.Norm(" ".join(words[i] for i in order), eps=0.1)
    found = run(x.transpose(order), dy.transpose(order), norm, **arguments)
    expected = replace(expected, y=expected.y.transpose(order), dx=expected.dx.transpose(order))
    assert_close_results(found, expected, 2**7 * ULP, f"{norm}")


@pytest.mark.parametrize("eps_at", ["var", "std"])
@pytest.mark.parametrize("name", RECIPES)
def test_scaling_by_powers_of_two_is_exact(name: str, eps_at: Literal["var", "std"], thin: int) -> None:
    pattern, rng = RECIPES[name], np.random.default_rng(8)
    x, dy = (draw(rng, pattern.shape).astype(np.float32) for draw in (offset_data, odd))
    parameters = pattern.parameters(rng)
    valid, eps = rng.random(pattern.shape) < 0.8, 0.01
    base = replace(pattern.norm, eps_at=eps_at)
    expected = run(x, dy, replace(base, eps=eps), valid=valid, **parameters)
    for k in range(-100, 101, 10 * thin):
        a = 2.0**k
        norm = replace(base, eps=eps * (a**2 if eps_at == "var" else a))
        found = run(x * np.float32(a), dy, norm, valid=valid, **parameters)
        assert_same_bits(found.y, expected.y, f"{norm}: y")
        assert_same_bits(found.dweight, expected.dweight, f"{norm}: dweight")
        # dx shrinks as x grows; the last bit may be lost among the subnormals of float32.
        assert_same_bits(found.dx, (expected.dx.astype(float) / a).astype(np.float32), f"{norm}: dx")


@given(
    st.sampled_from([np.float16, np.float32, np.float64]),
    st.integers(-20, 20),
    st.lists(st.integers(1, 31), min_size=1, max_size=40),
    SEEDS,
)
def test_pairs_around_a_mean_have_exact_statistics(dtype: Any, exponent: int, halves: list[int], seed: int) -> None:
    # m(1+f) and m(1-f), of few bits: no sum is ever rounded, so no statistic may be.
    m = 2.0 ** (exponent // (4 if dtype is np.float16 else 1))
    f = np.array(halves) / 32
    pairs = np.concatenate([m * (1 + f), m * (1 - f)]).astype(dtype)
    np.random.default_rng(seed).shuffle(pairs)
    found = tn.measure(pairs, tn.layer())
    expected = tn.Moments(len(pairs), m, 2 * m**2 * (f**2).sum())
    assert_same_moments(found, expected, "all at once")
    cut = len(pairs) // 3
    one, two = (tn.measure(part, tn.layer()) for part in (pairs[:cut], pairs[cut:]))
    assert_same_statistics(tn.merge(one, two), expected, pairs.astype(float), "in two parts", dtype)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 3, 2**24 + 1, 2**31, 2**31 + 1, 2**40, 2**53 // 8]),
            st.integers(-(2**20), 2**20),
            st.integers(0, 2**20),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_large_counts_merge_exactly(parts: list[tuple[int, int, int]]) -> None:
    merged = tn.merge(*(tn.Moments(count, mean / 1024, m2 / 1024) for count, mean, m2 in parts))
    count = sum(count for count, _, _ in parts)
    assert merged.count.dtype == np.int64
    assert int(merged.count) == count
    if not count:
        return
    pairs = [(c, Fraction(m, 1024), Fraction(m2, 1024)) for c, m, m2 in parts if c]
    mean = sum((c * m for c, m, _ in pairs), Fraction()) / count
    m2 = sum((m2 + c * (m - mean) ** 2 for c, m, m2 in pairs), Fraction())
    assert abs(Fraction(float(merged.mean)) - mean) <= 4 * Fraction(ULP) * max(abs(m) for _, m, _ in pairs)
    # The rounding of the mean affects every element.
    rounding = 4 * ULP * max(abs(float(m)) for _, m, _ in pairs)
    bound = 64 * ULP * float(m2) + 2 * rounding * float(count * m2) ** 0.5 + count * rounding**2
    assert abs(Fraction(float(merged.m2)) - m2) <= bound


@pytest.mark.parametrize("outlier", [1e8, -1e8])
@pytest.mark.parametrize("norm", [tn.layer(), tn.batch()], ids=str)
def test_an_outlier_does_not_make_the_mean_less_accurate(norm: tn.Norm, outlier: float, on_engine: str) -> None:
    # A plain sum is rounded at the size of the outlier: the mean has to add the mean of the remainders.
    if on_engine != "reference":
        pytest.skip("promised by the reference only; kernels round at the size of the largest number")
    x = np.append(outlier, np.random.default_rng(10).normal(size=999))
    exact = sum(map(Fraction, x.tolist()), Fraction()) / 1000
    mean = tn.measure(x.reshape((1, -1) if norm == tn.layer() else (-1, 1)), norm).mean.item()
    assert abs(Fraction(mean) - exact) <= 4 * Fraction(ULP) * abs(exact)


def test_a_long_stream_of_parts_does_not_drift() -> None:
    rng = np.random.default_rng(9)
    data = rng.normal(1e4, 1.0, (3000, 2))
    total = tn.measure(data[:0], tn.batch())
    for row in range(0, 3000, 3):
        total = tn.merge(total, tn.measure(data[row : row + 3], tn.batch()))
    whole = tn.measure(data, tn.batch())
    assert int(total.count[0]) == 3000
    # A thousand roundings of the mean instead of one.
    assert_close(total.mean, whole.mean, 1000 * ULP * 1e4, "mean")
    assert_close(total.m2, whole.m2, 2 * 1000 * ULP * 1e4 * np.sqrt(3000 * whole.m2), "m2")
