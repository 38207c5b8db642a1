"""Running statistics against their closed forms, and which batches they skip."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import Any, Literal

import numpy as np
import pytest
from errors import assert_message
from numpy.testing import assert_allclose, assert_array_equal

import truenorm as tn
from truenorm.core.running import (
    Convention,
    Running,
    half_life_from_momentum,
    keras_convention,
    momentum_from_half_life,
    torch_convention,
)

Momentum = float | Literal["pooled"] | None
RNG = np.random.default_rng(20)
BATCHES = [RNG.normal(3.0 * i, 1.0 + i, size=(n, 2)) for i, n in enumerate((7, 3, 12, 1 + 1))]


def run(convention: Convention, batches: list[np.ndarray[Any, Any]]) -> Running:
    running = Running.start((2,), convention)
    for x in batches:
        running = running.update(tn.measure(x, tn.batch()))
    return running


@pytest.mark.parametrize("momentum", [0.1, 0.25, 1.0, 0.0])
def test_momentum_is_a_geometric_series(momentum: float) -> None:
    got = run(torch_convention(momentum), BATCHES)
    k = len(BATCHES)
    weights = [momentum * (1 - momentum) ** (k - 1 - i) for i in range(k)]
    rest = (1 - momentum) ** k
    assert_allclose(got.mean, sum(w * x.mean(0) for w, x in zip(weights, BATCHES, strict=True)), rtol=1e-13)
    expected = rest * 1.0 + sum(w * x.var(0, ddof=1) for w, x in zip(weights, BATCHES, strict=True))
    assert_allclose(got.var, expected, rtol=1e-13)
    assert got.batches == k
    assert_array_equal(got.count, [sum(map(len, BATCHES))] * 2)


def test_the_same_batch_again_approaches_it_geometrically() -> None:
    got = run(torch_convention(0.1), [BATCHES[0]] * 30)
    assert_allclose(got.mean, BATCHES[0].mean(0) * (1 - 0.9**30), rtol=1e-13)


def test_cumulative_is_the_average_over_batches() -> None:
    got = run(torch_convention(None), BATCHES)
    assert_allclose(got.mean, np.mean([x.mean(0) for x in BATCHES], axis=0), rtol=1e-13)
    assert_allclose(got.var, np.mean([x.var(0, ddof=1) for x in BATCHES], axis=0), rtol=1e-13)


@pytest.mark.parametrize("ddof", [0, 1])
def test_pooled_describes_all_the_data(ddof: Literal[0, 1]) -> None:
    data = np.concatenate(BATCHES)
    got = run(Convention("pooled", ddof=ddof), BATCHES)
    assert_allclose(got.mean, data.mean(0), rtol=1e-13)
    assert_allclose(got.var, data.var(0, ddof=ddof), rtol=1e-13)
    assert_array_equal(got.count, [len(data)] * 2)


def test_pooled_takes_batches_of_one_element() -> None:
    data = np.concatenate(BATCHES)
    got = run(Convention("pooled", ddof=1), [row[None] for row in data])
    assert_allclose(got.mean, data.mean(0), rtol=1e-12)
    assert_allclose(got.var, data.var(0, ddof=1), rtol=1e-12)


def test_an_average_of_variances_ignores_the_distance_of_the_means() -> None:
    batches = [np.array([[-3.0] * 2, [-1.0] * 2]), np.array([[1.0] * 2, [3.0] * 2])]
    assert_array_equal(run(Convention(None, ddof=0), batches).var, [1.0, 1.0])
    assert_array_equal(run(Convention("pooled", ddof=0), batches).var, [5.0, 5.0])


def test_keras_momentum_is_the_weight_of_the_old_statistics() -> None:
    got = run(keras_convention(0.99), BATCHES[:1])
    assert_allclose(got.mean, 0.01 * BATCHES[0].mean(0), rtol=1e-12)
    assert_allclose(got.var, 0.99 + 0.01 * BATCHES[0].var(0), rtol=1e-12)
    assert keras_convention() == keras_convention(0.99)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("momentum", [0.1, None, "pooled"])
def test_a_non_finite_channel_changes_nothing_and_is_counted(bad: float, momentum: Momentum) -> None:
    before = run(Convention(momentum, ddof=1), BATCHES)
    x = BATCHES[0].copy()
    x[3, 1] = bad
    after = before.update(tn.measure(x, tn.batch()))
    assert_array_equal(after.mean, before.mean)
    assert_array_equal(after.var, before.var)
    assert (after.batches, after.skipped) == (before.batches, before.skipped + 1)
    following = after.update(tn.measure(BATCHES[1], tn.batch()))
    assert np.isfinite(following.mean).all()
    assert following.batches == before.batches + 1


@pytest.mark.parametrize("momentum", [0.1, None, "pooled"])
@pytest.mark.parametrize("ddof", [0, 1])
def test_a_channel_is_finite_if_mean_and_m2_are_or_if_it_has_no_elements(
    momentum: Momentum, ddof: Literal[0, 1]
) -> None:
    before = run(Convention(momentum, ddof), BATCHES)
    for count, mean, m2 in ((5, math.inf, 2.0), (5, 1.0, math.inf), (1, math.nan, 0.0)):
        after = before.update(tn.Moments([4, count], [2.5, mean], [3.0, m2]))
        assert (after.batches, after.skipped) == (before.batches, before.skipped + 1)
    after = before.update(tn.Moments([4, 0], [2.5, math.nan], [3.0, math.nan]))
    assert (after.batches, after.skipped) == (before.batches + 1, before.skipped)
    assert after.mean[0] != before.mean[0]
    assert (after.mean[1], after.var[1]) == (before.mean[1], before.var[1])


@pytest.mark.parametrize("momentum", [0.1, None, "pooled"])
def test_a_batch_without_valid_elements_changes_nothing(momentum: Momentum) -> None:
    before = run(Convention(momentum, ddof=1), BATCHES)
    x = BATCHES[0]
    after = before.update(tn.measure(x, tn.batch(), valid=np.zeros(len(x), bool)))
    assert after is before


def test_a_channel_without_a_valid_value_stays_and_the_counter_moves() -> None:
    before = run(torch_convention(), BATCHES)
    x = BATCHES[0]
    valid = np.ones(x.shape, bool)
    valid[:, 1] = False
    after = before.update(tn.measure(x, tn.batch(), valid=valid))
    assert after.mean[0] != before.mean[0]
    assert (after.mean[1], after.var[1]) == (before.mean[1], before.var[1])
    assert after.batches == before.batches + 1


def test_a_pooled_channel_without_valid_elements_keeps_its_initial_statistics() -> None:
    valid = np.array([[True, False]] * 3)
    x = BATCHES[0][:3]
    running = Running.start((2,), Convention("pooled", ddof=0)).update(tn.measure(x, tn.batch(), valid=valid))
    assert (running.mean[1], running.var[1]) == (0.0, 1.0)
    assert_allclose(running.mean[0], x[:, 0].mean())
    one = Running.start((2,), Convention("pooled", ddof=0)).update(tn.measure(x[:1], tn.batch()))
    assert_array_equal(one.mean, x[0])


def test_every_skipped_batch_is_counted() -> None:
    running = Running.start((2,), torch_convention())
    for _ in range(3):
        running = running.update(tn.measure(np.full((4, 2), np.nan), tn.batch()))
    assert (running.skipped, running.batches) == (3, 0)


def test_a_single_value_has_no_variance_to_store() -> None:
    before = run(torch_convention(), BATCHES)
    after = before.update(tn.measure(BATCHES[0][:1], tn.batch()))
    assert_array_equal(after.var, before.var)
    assert_array_equal(after.mean, before.mean)
    assert after.batches == before.batches


@pytest.mark.parametrize("ddof", [0, 1])
def test_running_statistics_normalise_as_constants(ddof: Literal[0, 1]) -> None:
    running = run(torch_convention(), BATCHES)
    norm = tn.batch(ddof=ddof, eps=1e-3)
    out = tn.forward(BATCHES[0], norm, moments=running.moments(norm))
    assert_allclose(out.y, (BATCHES[0] - running.mean) / np.sqrt(running.var + 1e-3), rtol=1e-14)
    dy = RNG.normal(size=out.y.shape)
    assert_allclose(tn.backward(dy, out)[0], dy / np.sqrt(running.var + 1e-3), rtol=1e-14)


def test_variance_is_never_negative_and_survives_large_means() -> None:
    running = Running.start((1,), torch_convention(0.5))
    for i in range(40):
        x = 1e8 + RNG.normal(size=(50, 1))
        running = running.update(tn.measure(x, tn.batch()))
        assert running.var[0] >= 0
        if i > 30:
            assert 0.5 < running.var[0] < 2


def test_a_pooled_batch_that_overflows_is_skipped() -> None:
    running = Running.start((2,), Convention("pooled", ddof=1)).update(tn.measure([[1.0, 2.0], [2.0, 3.0]], tn.batch()))
    after = running
    for skipped in (1, 2):
        after = after.update(tn.measure([[1.7e308, 2.0]], tn.batch()))
        assert after.skipped == skipped
    np.testing.assert_array_equal(after.mean, running.mean)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_statistics_of_any_dtype_are_updated(dtype: type) -> None:
    batch = tn.measure([[1.0, 2.0], [2.0, 4.0]], tn.batch())
    running = Running(np.zeros(2, dtype), np.ones(2, dtype), np.zeros(2, int), torch_convention())
    np.testing.assert_allclose(running.update(batch).mean, [0.15, 0.3])


@pytest.mark.parametrize("momentum", [0.1, None])
def test_one_statistic_stays_an_array(momentum: float | None) -> None:
    running = Running.start((), torch_convention(momentum)).update(tn.measure([1.0, 2.0], tn.Norm("[b]")))
    assert isinstance(running.mean, np.ndarray)
    assert isinstance(running.count, np.ndarray)


def test_skipping_a_batch_gives_no_warning() -> None:
    running = Running.start((2,), Convention(0.0, ddof=1)).update(tn.measure([[1e200, 2.0], [0.0, 1.0]], tn.batch()))
    assert running.batches + running.skipped == 1


# ---- half-lives ----


def decayed(parts: list[tuple[int, float]], half_life: float) -> float:
    """The average of values in which one weighs 2^(-age / half_life): parts are how many came, and their value."""
    total, weighted, age = Decimal(0), Decimal(0), 0
    with localcontext(prec=60):  # 1 - 2^(-1e-12) has lost half of its digits in float64
        for count, value in reversed(parts):
            weight = 2 ** (-age / Decimal(half_life)) * (1 - 2 ** (-count / Decimal(half_life)))
            total += weight
            weighted += weight * Decimal(value)
            age += count
        return float(weighted / total)


@pytest.mark.parametrize("half_life", [0.5, 9.0, 1e3, 1e12])
@pytest.mark.parametrize("ddof", [0, 1])
def test_half_life_is_a_decay_in_elements(half_life: float, ddof: Literal[0, 1]) -> None:
    for k in range(1, len(BATCHES) + 1):
        got = run(Convention(None, ddof, half_life), BATCHES[:k])
        for channel in range(2):
            parts = [(len(x), x[:, channel]) for x in BATCHES[:k]]
            mean = decayed([(n, float(x.mean())) for n, x in parts], half_life)
            var = decayed([(n, float(x.var(ddof=ddof))) for n, x in parts], half_life)
            assert_allclose([got.mean[channel], got.var[channel]], [mean, var], rtol=1e-12)
    assert_array_equal(got.count, [sum(map(len, BATCHES))] * 2)


def test_half_life_does_not_depend_on_how_elements_are_cut() -> None:
    old, new = np.ones((6, 2)), np.zeros((8, 2))
    weights = [
        run(Convention(None, 0, 5.0), [old, *np.split(new, cuts)]).mean[0] for cuts in ([], [4], [1, 2, 7], range(1, 8))
    ]
    expected = decayed([(6, 1.0), (8, 0.0)], 5.0)
    assert 0.1 < expected < 0.25
    assert_allclose(weights, expected, rtol=1e-13)


def test_half_life_forgets_the_initial_statistics_and_what_is_left_out() -> None:
    convention = Convention(None, ddof=1, half_life=7.0)
    valid = np.ones((7, 2), bool)
    valid[1:, 1] = False  # one element has no variance: it is left out
    first = Running.start((2,), convention).update(tn.measure(BATCHES[0], tn.batch(), valid=valid))
    assert (first.mean[1], first.var[1]) == (0.0, 1.0)
    assert_allclose(first.mean[0], BATCHES[0][:, 0].mean(), rtol=1e-14)
    second = first.update(tn.measure(BATCHES[1], tn.batch()))
    assert_allclose(second.mean[1], BATCHES[1][:, 1].mean(), rtol=1e-14)
    assert_array_equal(second.count, [10, 3])


@pytest.mark.parametrize("momentum", [1e-9, 0.01, 0.1, 0.5, 0.999])
@pytest.mark.parametrize("count", [1, 64, 32768])
def test_half_lives_are_momenta_and_back(momentum: float, count: int) -> None:
    half_life = half_life_from_momentum(momentum, count)
    assert_allclose(momentum_from_half_life(half_life, count), momentum, rtol=1e-12)
    assert_allclose((1 - momentum) ** (half_life / count), 0.5, rtol=1e-6)
    keras = 1 - momentum
    if momentum > 1e-3:  # 1 - momentum has lost digits of smaller ones
        assert_allclose(half_life_from_momentum(keras, count, "keras"), half_life, rtol=1e-12)
    assert_allclose(momentum_from_half_life(half_life, count, "keras"), keras, rtol=1e-14)


def test_a_half_life_of_a_long_training_is_a_momentum() -> None:
    count, momentum = 12, 0.2
    long = Running(
        np.zeros(2), np.ones(2), np.array([np.inf] * 2), Convention(None, 1, half_life_from_momentum(momentum, count))
    )
    short = Running.start((2,), torch_convention(momentum))
    for seed in range(4):
        batch = tn.measure(np.random.default_rng(seed).normal(5.0, 2.0, size=(count, 2)), tn.batch())
        long, short = long.update(batch), short.update(batch)
        assert_allclose(long.mean, short.mean, rtol=1e-13)
        assert_allclose(long.var, short.var, rtol=1e-13)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: Convention(0.1, 1, 5.0),
            "Convention: momentum or half_life, got momentum=0.1 and half_life=5.0. Pass momentum=None with half_life.",
        ),
        (
            lambda: Convention(None, 1, math.inf),
            "Convention: half_life is a finite number > 0, got inf. It is a number of valid values per channel.",
        ),
        (
            lambda: momentum_from_half_life(True, 4),
            "momentum_from_half_life: half_life is a finite number > 0, got True. "
            "It is a number of valid values per channel.",
        ),
        (
            lambda: momentum_from_half_life(4.0, 0),
            "momentum_from_half_life: count is a finite number > 0, got 0. "
            "It is the valid values per channel in a batch.",
        ),
        (
            lambda: half_life_from_momentum(1.0, 4),
            "half_life_from_momentum: momentum is a number between 0 and 1, got 1.0. Others have no half-life.",
        ),
        (
            lambda: half_life_from_momentum(0.1, 4, "jax"),  # type: ignore[arg-type]
            "half_life_from_momentum: library is 'torch' or 'keras', got 'jax'.",
        ),
    ],
)
def test_half_lives_that_make_no_sense_are_refused(call: Any, text: str) -> None:
    assert_message(call, ValueError, text)
