"""Interleaved rounds, on a clock that only the calls move."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from bench.timing import Rounds, error_of_median, interleave, ratio, rotate, spread


def fake_clock(costs: dict[str, float]) -> tuple[Callable[[], float], dict[str, Callable[[], None]], list[str]]:
    """A clock that only the calls move, the calls, and the order in which they came."""
    now, order = [0.0], list[str]()

    def call(name: str) -> None:
        now[0] += costs[name]
        order.append(name)

    return lambda: now[0], {name: partial(call, name) for name in costs}, order


def test_every_round_runs_each_call_once_in_rotated_order() -> None:
    clock, calls, order = fake_clock({"a": 1.0, "b": 2.0, "c": 3.0})
    found = interleave(calls, seconds=0, rounds=(4, 9), pause=0, clock=clock, others=lambda: 0.0)
    turns = order[3 * 3 :]  # after three calls each to find out how long they take
    assert "".join(turns) == "aabbcc" + "bbccaa" + "ccaabb" + "aabbcc"  # untimed, then timed
    assert [found.seconds(name) for name in "abc"] == [[1.0] * 4, [2.0] * 4, [3.0] * 4]
    assert rotate("abc", 5) == ["c", "a", "b"]


def test_short_calls_are_repeated_and_long_budgets_used() -> None:
    clock, calls, _ = fake_clock({"short": 0.001, "long": 0.5})
    found = interleave(calls, seconds=10, rounds=(2, 100), pause=0, turn=0.0079, clock=clock, others=lambda: 0.0)
    assert (found.samples["short"].calls, found.samples["long"].calls) == (8, 1)
    assert len(found.others) == 10  # rounds of 1.016 s
    np.testing.assert_allclose(found.seconds("short"), 0.001)


def test_disturbed_rounds_do_not_count() -> None:
    clock, calls, _ = fake_clock({"a": 1.0})
    busy = iter([0.0, 0.0, 0.0, 2.0, 2.0, 2.0, 2.0, 2.0])  # read before and after each round: the second is disturbed
    found = interleave(calls, seconds=6, rounds=(3, 9), pause=0, clock=clock, others=lambda: next(busy))
    assert (len(found.others), found.quiet()) == (4, [0, 2, 3])
    assert not found.disturbed()
    assert found.seconds("a") == [1.0] * 3


def test_too_few_quiet_rounds_are_reported() -> None:
    clock, calls, _ = fake_clock({"a": 1.0})
    found = interleave(
        calls, seconds=10, rounds=(3, 99), pause=0, clock=clock, others=clock
    )  # other processes are always busy
    assert found.disturbed()
    assert (len(found.others), found.quiet()) == (10, [])  # twice the 10 s, 2 s each round
    assert len(found.seconds("a")) == 10


def test_a_precise_median_ends_early() -> None:
    clock, calls, _ = fake_clock({"a": 1.0})
    seen: list[int] = []

    def enough(found: Rounds[str]) -> bool:
        seen.append(len(found.seconds("a")))
        return len(found.seconds("a")) == 6

    found = interleave(calls, seconds=99, rounds=(4, 99), pause=0, clock=clock, others=lambda: 0.0, enough=enough)
    assert (len(found.others), seen) == (6, [4, 5, 6])
    busy = interleave(calls, seconds=10, rounds=(3, 99), pause=0, clock=clock, others=clock, enough=lambda found: True)
    assert len(busy.others) == 10  # rounds that are disturbed are never enough
    draws = np.random.default_rng(0).normal(2.0, 0.1, (4000, 25))
    errors = [error_of_median(row) for row in draws]
    np.testing.assert_allclose(np.median(errors), np.median(draws, 1).std() / 2.0, rtol=0.1)


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    # The machine was 10 times slower in the last two rounds: medians of times would give 20 / 1.
    assert ratio([2.0, 2.0, 20.0, 20.0, 40.0], [1.0, 1.0, 1.0, 10.0, 10.0]) == {"median": 2.0, "low": 2.0, "high": 4.0}
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "low": 1.5, "high": 2.5}
    assert spread([3.0]) == {"median": 3.0, "low": 3.0, "high": 3.0}
    with pytest.raises(ValueError, match="shorter"):
        ratio([1.0, 2.0], [1.0])
