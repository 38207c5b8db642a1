"""Packed rows with further axes, and with an axis of size 1 in front, give the numbers of the padded samples."""

from typing import Any

import numpy as np
import pytest
from patterns import Array

import truenorm as tn

LENGTHS = np.array([3, 0, 5, 1])
NORMS = {  # each with the axes of x behind b and t; c are the channels
    "b [t] h c": {"h": 2, "c": 6},
    "b [t h] c": {"h": 2, "c": 6},
    "b [t] c h": {"c": 6, "h": 2},
    "b [t h] (g [c])": {"h": 2, "c": 6},
    "b [t] h w c": {"h": 2, "w": 7, "c": 6},
    "[b] t h c": {"h": 2, "c": 6},
    "[b] t c": {"c": 6},
    "b [t] c": {"c": 6},
    "[b t] h c": {"h": 2, "c": 6},
    "b t h [c]": {"h": 2, "c": 6},
    "b [s] c": {"c": 6},
    "b [...] c": {"h": 2, "w": 7, "c": 6},
    "b [...] h c": {"h": 2, "c": 6},
    "[...] c": {"h": 2, "c": 6},
    "[...] h c": {"h": 2, "c": 6},
}


def packed(padded: Array) -> Array:
    return np.concatenate([sample[:length] for sample, length in zip(padded, LENGTHS, strict=True)])


@pytest.mark.parametrize("weights", ["none", "each", "broadcast", "with channels"])
@pytest.mark.parametrize("pattern", NORMS)
def test_packed_rows_are_the_rows_of_padded_samples(pattern: str, weights: str) -> None:
    rng, behind = np.random.default_rng(12), NORMS[pattern]
    norm = tn.Norm(pattern, sizes={"g": 2} if "g" in pattern else {})
    shape = (4, 5, *behind.values())
    x, dy = rng.normal(3, 2, shape), rng.normal(size=shape)
    weight, bias = rng.normal(size=(2, 6))
    channel = 2 + list(behind).index("c")
    positions = [size for axis, size in enumerate(shape) if axis != channel]
    s: Array | None = rng.choice([0.0, 0.5, 2.0], positions)
    if weights == "none":
        s = None
    elif weights == "broadcast":
        s = rng.choice([0.5, 2.0], [4, 5, *[1] * len(positions[2:])])
    elif weights == "with channels":
        s = np.expand_dims(rng.choice([0.5, 2.0], positions), channel)
    expected = tn.forward(x, norm, lengths=LENGTHS, along=1, weight=weight, bias=bias, sample_weight=s)
    dx = tn.backward(dy, expected)[0]

    ids = np.repeat([-5, 0, 4, 30], LENGTHS)
    mixed = np.argsort(rng.permutation(ids), kind="stable")
    order = np.argsort(mixed)  # within a sample, rows keep theirs
    offsets = {"offsets": np.concatenate([[0], np.cumsum(LENGTHS)])}
    given: dict[str, Any]
    for given, place in ((offsets, np.arange(9)), ({"segments": ids[order]}, order), ({"segments": ids}, np.arange(9))):
        for front in ((), (None,)):
            arguments = given if s is None else {**given, "sample_weight": packed(s)[place][front]}
            out = tn.forward(packed(x)[place][front], norm, weight=weight, bias=bias, **arguments)
            found = tn.backward(packed(dy)[place][front], out)[0]
            for one, two in ((out.y, expected.y), (found, dx)):
                np.testing.assert_allclose(one, packed(two)[place][front], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("pattern", ["b [t h] c", "[b t h] c"])
def test_an_axis_of_size_1_may_hold_the_only_row(pattern: str) -> None:
    rng = np.random.default_rng(14)
    x, (weight, bias) = rng.normal(size=(1, 2, 6)), rng.normal(size=(2, 6))
    expected = tn.forward(x[None], pattern, weight=weight, bias=bias)
    out = tn.forward(x, pattern, weight=weight, bias=bias, offsets=[0, 0, 1])
    np.testing.assert_allclose(out.y, expected.y[0], rtol=1e-12)


@pytest.mark.parametrize("pattern", ["b [t] c", "[b t] c"])
def test_no_rows_have_an_empty_list_of_segments(pattern: str) -> None:
    assert tn.forward(np.zeros((0, 3)), pattern, segments=[]).y.shape == (0, 3)
