"""The oracle of the benchmarks is right, and the validator accepts right implementations only."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bench.inputs import Array, Case
from bench.oracle import expected_results
from bench.peers import numpy_plain, truenorm_numpy
from bench.suite import Run, validate
from bench_cases import CASES

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.shape}")


@every_case
def test_the_oracle_agrees_with_finite_differences(case: Case) -> None:
    inputs = case.make_inputs()
    wide = {
        field: getattr(inputs, field).astype(np.float64)
        for field in ("x", "dy", "weight", "bias")
        if getattr(inputs, field) is not None
    }

    def loss(**changed: Array) -> float:
        y = expected_results(dataclasses.replace(inputs, **(wide | changed)))["y"].value
        return float(np.sum(y * wide["dy"]))

    results = expected_results(inputs)
    assert ("dbias" in results) == (case.kind != "rms")
    for field in wide.keys() - {"dy"}:
        found = np.zeros(wide[field].shape)
        for at in np.ndindex(found.shape):
            step = np.zeros(found.shape)
            step[at] = 1e-5
            found[at] = (loss(**{field: wide[field] + step}) - loss(**{field: wide[field] - step})) / 2e-5
        np.testing.assert_allclose(results[f"d{field}"].value, found, rtol=1e-6, atol=1e-6)


def test_the_oracle_never_looks_at_padding() -> None:
    inputs = CASES[0].make_inputs()
    assert inputs.mask is not None
    spoilt = dataclasses.replace(inputs, x=np.where(inputs.mask, inputs.x, np.float32(np.nan)))
    for name, expected in expected_results(inputs).items():
        np.testing.assert_array_equal(expected_results(spoilt)[name].value, expected.value)
    padding = np.broadcast_to(~inputs.mask, inputs.x.shape)
    assert np.all(expected_results(inputs)["y"].value[padding] == 0)
    assert np.any(expected_results(inputs, ignore_padding=False)["y"].value[padding] != 0)


@every_case
@pytest.mark.parametrize("peer", [truenorm_numpy, numpy_plain], ids=["truenorm", "numpy"])
def test_right_implementations_pass(case: Case, peer: Any) -> None:
    inputs = case.make_inputs()
    assert validate(peer.bind(inputs), expected_results(inputs)) == []


Results = tuple[Any, Any, Any, Any]
WRONG: dict[str, tuple[Callable[[Results], Results], str]] = {
    "y is off": (lambda r: (r[0] * np.float32(1.0001), *r[1:]), "y: at most"),
    "one element is NaN": (lambda r: (r[0], np.where(r[1] == r[1].max(), np.float32("nan"), r[1]), *r[2:]), "dx: at"),
    "a gradient is dropped": (lambda r: (*r[:3], None), "dbias: missing"),
    "float64 comes back": (lambda r: (r[0], r[1].astype(np.float64), *r[2:]), "dx: float32 (4, 7, 5), got float64"),
    "dweight is summed twice": (lambda r: (*r[:2], 2 * r[2], r[3]), "dweight: at most 64 roundings"),
    "padding has a gradient": (lambda r: (r[0], np.where(r[1] == 0, np.float32(0.1), r[1]), *r[2:]), "dx: at most"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_implementation_is_caught(mistake: str) -> None:
    inputs = CASES[0].make_inputs()
    right = numpy_plain.bind(inputs)
    spoil, message = WRONG[mistake]
    wrong = validate(Run(right.forward, lambda: spoil(right.both())), expected_results(inputs))
    assert len(wrong) == 1
    assert wrong[0].startswith(message)


def test_a_wrong_forward_is_caught_though_forward_and_backward_are_right() -> None:
    inputs = CASES[0].make_inputs()
    right = numpy_plain.bind(inputs)
    (wrong,) = validate(Run(lambda: right.forward() + np.float32(0.01), right.both), expected_results(inputs))
    assert wrong.startswith("y of forward alone: at most")


def test_counting_padding_is_caught_unless_the_implementation_declares_it() -> None:
    inputs = CASES[0].make_inputs()
    with_padding = numpy_plain.bind(dataclasses.replace(inputs, lengths=None))
    assert validate(with_padding, expected_results(inputs))
    assert validate(with_padding, expected_results(inputs, ignore_padding=False)) == []


def test_a_wrong_divisor_on_32768_rows_is_caught() -> None:
    inputs = Case("batch", (32768, 3)).make_inputs()
    expected = expected_results(inputs)
    y = expected["y"].value - inputs.bias
    off = (y * np.sqrt(32767 / 32768) + inputs.bias).astype(np.float32)
    right = truenorm_numpy.bind(inputs)
    assert validate(right, expected) == []
    assert validate(Run(lambda: off, right.both), expected)
