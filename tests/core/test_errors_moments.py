"""The messages for moments, weight, bias and running statistics, with their full texts."""

from functools import partial
from typing import Any, cast

import numpy as np
import pytest
from errors import Call, assert_message, untested_raises

import truenorm
from truenorm import engine
from truenorm.core import inputs, moments, reference, running
from truenorm.core.running import torch_convention

# Untyped: most of these calls are wrong on purpose.
tn: Any = truenorm
Norm: Any = truenorm.Norm
Convention: Any = running.Convention
Running: Any = running.Running
X = np.arange(24.0).reshape(2, 4, 3)


def sums_of(*parameters: str) -> Any:
    """Backward sums of a forward with these parameters."""
    return tn.backward_sums(X, tn.forward(X, tn.batch(), **{name: np.ones(3) for name in parameters}))


VALUE_ERRORS: list[tuple[Call, str]] = [
    (
        lambda: tn.Moments(np.ones(3), np.zeros(2), np.zeros(2)),
        "Moments: all must have one shape, got count (3,), mean (2,) and m2 (2,).",
    ),
    (
        lambda: tn.Moments(np.ones((2, 2)), np.zeros(2), np.zeros(2)),
        "Moments: all must have one shape, got count (2, 2), mean (2,) and m2 (2,).",
    ),
    (
        lambda: tn.Moments(3, np.zeros(2), np.zeros(1)),
        "Moments: all must have one shape, got count (), mean (2,) and m2 (1,).",
    ),
    (
        lambda: tn.Moments(-1, 0.0, 0.0),
        "Moments: count and m2 must be >= 0, got minima of -1 and 0.0.",
    ),
    (
        lambda: tn.Moments([1, 2], np.zeros(2), np.array([-0.5, 1.0])),
        "Moments: count and m2 must be >= 0, got minima of 1 and -0.5.",
    ),
    (
        lambda: Convention(0.1, 1, 64.0),
        "Convention: momentum or half_life, got momentum=0.1 and half_life=64.0. Pass momentum=None with half_life.",
    ),
    (
        lambda: Convention(None, 1, 0),
        "Convention: half_life is a finite number > 0, got 0. It is a number of valid values per channel.",
    ),
    (
        lambda: running.half_life_from_momentum(1.0, 64),
        "half_life_from_momentum: momentum is a number between 0 and 1, got 1.0. Others have no half-life.",
    ),
    (
        lambda: running.half_life_from_momentum("0.1", 64),  # type: ignore[arg-type]
        "half_life_from_momentum: momentum is a number between 0 and 1, got '0.1'. Others have no half-life.",
    ),
    (
        lambda: running.half_life_from_momentum(0.1, True),
        "half_life_from_momentum: count is a finite number > 0, got True. It is the valid values per channel in a "
        "batch.",
    ),
    (
        lambda: running.momentum_from_half_life(64.0, 0),
        "momentum_from_half_life: count is a finite number > 0, got 0. It is the valid values per channel in a batch.",
    ),
    (
        lambda: tn.merge(),
        "merge needs at least one Moments, got none.",
    ),
    (
        lambda: tn.merge(tn.measure(X, tn.batch()), tn.measure(X, tn.layer())),
        "merge needs Moments of one shape, got (2, 4) and (3,).",
    ),
    (
        lambda: tn.forward(X, tn.batch(), padding="same"),
        "padding must be 'zero' or 'keep', got 'same'.",
    ),
    (
        lambda: tn.forward(X, tn.batch(), moments=tn.measure(X, tn.layer())),
        "moments must have the shape (3,) for this x, got (2, 4).",
    ),
    (
        lambda: tn.forward(X, tn.rms(), moments=tn.Moments(3, np.full((2, 4), 0.5), np.ones((2, 4)))),
        "moments must have mean 0 if center=False, got 0.5 as the first. Measure them with the same norm.",
    ),
    (
        lambda: tn.forward(X, tn.batch(), weight=np.ones(4)),
        "weight must have the shape (3,) for this x, got (4,).",
    ),
    (
        lambda: tn.forward(X, tn.batch(), bias=1.0),
        "bias must have the shape (3,) for this x, got ().",
    ),
    (
        lambda: tn.forward(X[0], Norm("b [t]"), weight=np.ones(4)),
        "weight needs an axis c in the pattern, got shape (4,). Name its axes with affine=.",
    ),
    (
        lambda: sums_of("weight") + sums_of(),
        "BackwardSums: either all parts have a weight or none, and the same for bias, got parts that differ. "
        "Pass the same weight and bias to every forward.",
    ),
    (
        lambda: sums_of("weight", "bias") + sums_of("weight"),
        "BackwardSums: either all parts have a weight or none, and the same for bias, got parts that differ. "
        "Pass the same weight and bias to every forward.",
    ),
    *(
        (
            lambda momentum=momentum: Convention(momentum, 1),
            f"Convention: momentum is a float from 0 to 1, None or 'pooled', got {momentum!r}. "
            "It is the weight of the new batch.",
        )
        for momentum in (1.5, -0.1, 1, "0.1")
    ),
    (
        lambda: Convention(0.1, ddof=2),
        "Convention: ddof is 0 or 1, got 2.",
    ),
    (
        lambda: Convention("pooled", ddof=1.0),
        "Convention: ddof is 0 or 1, got 1.0.",
    ),
    (
        lambda: Running.start((2,), torch_convention()).update(tn.measure(np.ones((4, 3)), tn.batch())),
        "Running: moments must have the shape (2,), got (3,).",
    ),
]
TYPE_ERRORS: list[tuple[Call, str]] = [
    (
        lambda: tn.forward(X, tn.batch(), moments="abc"),
        "moments must be a Moments, got str. Make one with measure(x, norm) or Moments.from_variance(mean, var).",
    ),
    (
        lambda: tn.forward(X, tn.batch(), moments=(8, np.zeros(3), np.ones(3))),
        "moments must be a Moments, got tuple. Make one with measure(x, norm) or Moments.from_variance(mean, var).",
    ),
    (
        lambda: tn.backward(X, tn.forward(X, tn.batch()), sums="abc"),
        "sums must be a BackwardSums, got str. Make one with backward_sums(dy, out).",
    ),
    (
        lambda: Running.start((3,), torch_convention()).update("abc"),
        "Running: moments must be a Moments, got str. Make one with measure().",
    ),
    (
        lambda: tn.merge([1, 2]),
        "merge takes Moments, got list. Pass them one by one: merge(one, two).",
    ),
    (
        lambda: tn.backward(X, X),
        "out must be what forward returned, got ndarray. Pass dy first.",
    ),
    (
        lambda: tn.forward(X, tn.batch(), weight=["a", "b", "c"]),
        "weight must hold real numbers, got dtype <U1. Convert it to a float dtype first.",
    ),
    (
        lambda: Running.start((2,), "torch"),
        "Running: convention must be a Convention, got 'torch'. Make one with torch_convention().",
    ),
]


@pytest.mark.parametrize(("call", "text"), VALUE_ERRORS)
def test_wrong_values_of_moments_and_parameters_have_a_message(call: Call, text: str) -> None:
    assert_message(call, ValueError, text)


@pytest.mark.parametrize(("call", "text"), TYPE_ERRORS)
def test_wrong_types_of_moments_and_parameters_have_a_message(call: Call, text: str) -> None:
    assert_message(call, TypeError, text)


def test_every_error_of_moments_and_parameters_is_in_the_tables() -> None:
    assert not untested_raises((moments, inputs, reference, running), [call for call, *_ in VALUE_ERRORS + TYPE_ERRORS])


def test_wrong_settings_of_the_engine_have_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: Any = "fast"
    assert_message(lambda: engine.use(wrong), ValueError, "engine must be 'native' or 'reference', got 'fast'.")
    monkeypatch.setattr(engine, "_backends", {})
    text = "engine must be 'reference', got 'native', which is not built. Install with a C++ compiler."
    assert_message(lambda: engine.use("native"), ValueError, text)
    for count in (0, 1025, True, 2.0):
        text = f"threads must be an integer from 1 to 1024 or None, got {count!r}."
        assert_message(partial(engine.set_threads, cast(int, count)), ValueError, text)
