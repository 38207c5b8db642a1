"""Suites with made-up implementations: no torch, and hardly any time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bench import timing
from bench.cases import SUITES
from bench.inputs import Array, Inputs
from bench.measure import measure
from bench.peers import NUMPY, TRUENORM, numpy_plain
from bench.peers.copy import copier, copier_in_threads
from bench.suite import Implementation, Run, Suite
from bench_cases import CASES


def broken(inputs: Inputs) -> Run:
    raise RuntimeError("no compiler in /some/where")


def missing(inputs: Inputs) -> Run:
    raise ModuleNotFoundError(name="a_library_that_is_not_there")


def wrong(inputs: Inputs) -> Run:
    right = numpy_plain.bind(inputs)
    return Run(lambda: right.forward() * np.float32(2), right.both)


def small_suite(*others: Implementation, **changes: Any) -> Suite:
    fields: dict[str, Any] = {
        "name": "small",
        "title": "batch norm, 4x7x5",
        "case": CASES[0],
        "implementations": (TRUENORM, NUMPY, *others),
        "baseline": NUMPY.name,
        "compared_with": (NUMPY.name,),
    }
    return Suite(**(fields | changes))


@pytest.fixture
def run_small(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[dict[str, Any], list[str]]]:
    """Measures a small suite. Whether the tests pass does not depend on how busy the machine is."""
    monkeypatch.setattr(timing, "seconds_of_others", lambda: 0.0)

    def run(*others: Implementation, **changes: Any) -> tuple[dict[str, Any], list[str]]:
        said: list[str] = []
        return measure(small_suite(*others, **changes), seconds=0, patience=0, say=said.append), said

    return run


def test_wrong_broken_and_missing_implementations_are_listed_and_not_timed(run_small: Any) -> None:
    found, said = run_small(
        Implementation("wrong", wrong), Implementation("broken", broken), Implementation("missing", missing)
    )
    status = {one["name"]: one["status"] for one in found["implementations"]}
    assert status["truenorm"] == status["numpy"] == "ok"
    assert status["wrong"].startswith("failed: y of forward alone: at most 64 roundings")
    assert status["broken"] == "failed: RuntimeError"
    assert status["missing"] == "missing: a_library_that_is_not_there"
    assert {one["name"] for one in found["implementations"] if "both" in one} == {"truenorm", "numpy"}
    assert "    broken: no compiler in /some/where" in said
    assert "/some/where" not in json.dumps(found)


def test_a_peer_that_was_not_timed_has_no_ratio(run_small: Any) -> None:
    found, _ = run_small(Implementation("broken", broken), compared_with=(NUMPY.name, "broken"))
    ratios = {one["against"]: one["ratio"] for one in found["comparisons"]}
    assert ratios["numpy"]["median"] > 0
    assert ratios["broken"] is None
    assert set(ratios) == {"numpy", "broken", "copy"}
    baseline = next(one for one in found["implementations"] if one["name"] == "numpy")
    assert baseline["both"]["speed"] == {"median": 1.0, "low": 1.0, "high": 1.0}


def test_a_suite_says_that_other_processes_were_busy(run_small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not run_small()[0]["rounds"]["disturbed"]
    monkeypatch.setattr(timing, "seconds_of_others", lambda: 10 * time.perf_counter())
    found, _ = run_small()
    assert found["rounds"]["disturbed"]
    assert found["rounds"]["quiet"] == 0


def test_a_suite_needs_truenorm_its_baseline_and_the_peers_of_the_tables() -> None:
    message = r"Suite small: implementations must contain \['jax jit'\], got \['truenorm', 'numpy'\]\."
    with pytest.raises(ValueError, match=message):
        small_suite(compared_with=("jax jit",))
    message = r"Suite small: names of implementations must differ, got \['truenorm', 'numpy', 'numpy'\]\."
    with pytest.raises(ValueError, match=message):
        small_suite(NUMPY)


def test_quick_suites_keep_only_the_peers_of_the_tables() -> None:
    kept = small_suite(Implementation("broken", broken)).published_only()
    assert [one.name for one in kept.implementations] == ["truenorm", "numpy"]


def test_the_suites_have_distinct_names_and_peers() -> None:
    assert len({suite.name for suite in SUITES}) == len(SUITES) == 11
    assert all(suite.compared_with for suite in SUITES)


def test_a_forward_is_charged_for_each_pass_it_needs() -> None:
    ragged = CASES[0].make_inputs()
    assert ragged.lengths is not None
    assert ragged.valid_bytes == ragged.lengths.sum() * 5 * 4
    assert ragged.needed_bytes == ragged.x.nbytes + 2 * ragged.valid_bytes  # batch: all rows before the first output
    group = CASES[5].make_inputs()
    assert group.lengths is not None
    assert group.valid_bytes == group.lengths.sum() * 6 * 4
    assert group.needed_bytes == group.x.nbytes + group.valid_bytes


def test_the_same_case_gives_the_same_arrays() -> None:
    one, two = (CASES[0].make_inputs() for _ in range(2))
    for field in ("x", "dy", "weight", "bias", "lengths"):
        np.testing.assert_array_equal(getattr(one, field), getattr(two, field))
    assert one.x.dtype == one.dy.dtype == one.weight.dtype == np.float32


@pytest.mark.parametrize("copier", [copier, copier_in_threads])
def test_a_copy_copies(copier: Callable[[Array, Array], tuple[str, Callable[[], object]]]) -> None:
    for rows in (5, 50001):
        source, target = np.arange(rows * 7, dtype=np.float32).reshape(rows, 7), np.zeros((rows, 7), np.float32)
        _, copy = copier(source, target)
        copy()
        np.testing.assert_array_equal(target, source)
