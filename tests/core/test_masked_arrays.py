"""NumPy's masked arrays are refused in every argument: their mask would be lost."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from errors import assert_message

import truenorm
from truenorm import engine
from truenorm.core.running import Running, torch_convention

tn: Any = truenorm
X = np.arange(24.0).reshape(2, 4, 3)
ROWS = X.reshape(8, 3)


def masked(values: Any) -> Any:
    """A masked array of these values, the first of them masked."""
    array = np.ma.array(values)
    array.mask = np.arange(array.size).reshape(array.shape) == 0
    return array


OF_X = "Pass np.ma.getdata(x), valid=~np.ma.getmaskarray(x)."
OF_VALID = "Pass np.ma.filled(valid, False)."
OF_WEIGHTS = "Pass np.ma.filled(sample_weight, 0)."
CALLS: list[tuple[str, str, Callable[[Any], Any], Any]] = [
    ("x", OF_X, lambda value: tn.measure(value, tn.batch()), X),
    ("x", OF_X, lambda value: tn.forward(value, tn.batch()), X),
    ("x", OF_X, lambda value: tn.forward(value, tn.batch(), lengths=[1, 2]), X),
    ("valid", OF_VALID, lambda value: tn.measure(X, tn.batch(), valid=value), np.ones((2, 4), bool)),
    ("valid", OF_VALID, lambda value: tn.forward(X, tn.batch(), valid=value), np.ones((2, 4), bool)),
    ("lengths", "", lambda value: tn.measure(X, tn.batch(), lengths=value), np.array([1, 2])),
    ("lengths", "", lambda value: tn.forward(X, tn.batch(), lengths=value), np.array([1, 2])),
    ("offsets", "", lambda value: tn.measure(ROWS, tn.instance(), offsets=value), np.array([0, 8])),
    ("sample_weight", OF_WEIGHTS, lambda value: tn.measure(X, tn.batch(), sample_weight=value), np.ones((2, 4))),
    ("weight", "", lambda value: tn.forward(X, tn.batch(), weight=value), np.ones(3)),
    ("bias", "", lambda value: tn.forward(X, tn.batch(), bias=value), np.ones(3)),
    ("dy", "", lambda value: tn.backward(value, tn.forward(X, tn.batch())), X),
    ("dy", "", lambda value: tn.backward(value, tn.forward(X, tn.batch(), lengths=[1, 2])), X),
    ("dy", "", lambda value: tn.backward_sums(value, tn.forward(X, tn.batch())), X),
    ("count", "", lambda value: tn.Moments(value, np.zeros(3), np.ones(3)), np.ones(3)),
    ("mean", "", lambda value: tn.Moments(3, value, np.ones(3)), np.ones(3)),
    ("m2", "", lambda value: tn.Moments(3, np.zeros(3), value), np.ones(3)),
    ("var", "", lambda value: tn.Moments.from_variance(np.zeros(3), value), np.ones(3)),
    ("mean", "", lambda value: tn.Moments.from_variance(value, np.ones(3)), np.ones(3)),
    ("count", "", lambda value: tn.Moments.from_variance(np.zeros(3), np.ones(3), count=value), np.ones(3)),
    ("mean", "", lambda value: Running(value, np.ones(3), np.ones(3), torch_convention()), np.ones(3)),
    ("var", "", lambda value: Running(np.ones(3), value, np.ones(3), torch_convention()), np.ones(3)),
    ("count", "", lambda value: Running(np.ones(3), np.ones(3), value, torch_convention()), np.ones(3)),
]


@pytest.mark.parametrize("name", engine.available())
@pytest.mark.parametrize("case", CALLS, ids=[f"{i}-{case[0]}" for i, case in enumerate(CALLS)])
def test_a_masked_array_is_refused(case: tuple[str, str, Callable[[Any], Any], Any], name: Any) -> None:
    argument, fix, call, plain = case
    fix = fix or f"Its mask would be lost: pass np.ma.getdata({argument})."
    text = f"{argument} must be a plain array, got a masked array. {fix}"
    before = engine.engine()
    engine.use(name)
    try:
        call(plain)
        # Also without a mask: whether a call works must not depend on the data.
        for wrong in (masked(plain), np.ma.array(plain), list(masked(plain)) if plain.ndim > 1 else masked(plain)):
            assert_message(partial(call, wrong), TypeError, text)
    finally:
        engine.use(before)


@pytest.mark.parametrize("argument", ["valid", "lengths", "offsets", "sample_weight"])
def test_a_masked_array_is_refused_by_the_layers(argument: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import truenorm.torch as tnt

    values = {"valid": np.ones((2, 3), bool), "lengths": np.array([1, 2]), "offsets": np.array([0, 2])}
    values["sample_weight"] = np.ones((2, 3))
    x = torch.ones(2, 4, 3) if argument != "offsets" else torch.ones(2, 4)
    fixes = {"valid": OF_VALID, "sample_weight": OF_WEIGHTS}
    fix = fixes.get(argument, f"Its mask would be lost: pass np.ma.getdata({argument}).")
    text = f"{argument} must be a plain array, got a masked array. {fix}"
    for layer in (tnt.BatchNorm1d(4), tnt.GroupNorm(2, 4)):
        assert_message(partial(layer, x, **{argument: masked(values[argument])}), TypeError, text)


def test_what_the_message_says_gives_the_statistics_of_the_unmasked_elements() -> None:
    x = masked(X)
    found = tn.measure(np.ma.getdata(x), tn.batch(), valid=~np.ma.getmaskarray(x))
    assert found.count.tolist() == [7, 8, 8]
    np.testing.assert_allclose(found.mean, x.mean(axis=(0, 1)))
